// Package progress shows in the last line of a terminal what a command waits for.
package progress

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/examples/podvol/internal/table"
)

// Line is the last line of a terminal. What is written to it takes the line's place: the line is
// cleared before. Where there is no terminal it only passes on what is written. Several goroutines
// may use it.
type Line struct {
	out      io.Writer
	terminal io.Writer // takes control sequences; nil: there is none

	mu    sync.Mutex
	shown bool
}

// On returns the line of a writer; that of a line is itself.
func On(w io.Writer) *Line {
	if l, ok := w.(*Line); ok {
		return l
	}
	l := &Line{out: w}
	if table.TerminalWidth(w) > 0 {
		l.terminal = plaintext.AsGiven(w)
	}
	return l
}

// Unwrap returns the writer.
func (l *Line) Unwrap() io.Writer { return l.out }

// Write implements io.Writer.
func (l *Line) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clear()
	return l.out.Write(p)
}

const clearLine = "\r\x1b[K"

// maxNamed is how many volumes the line names.
const maxNamed = 3

// Show shows for which volumes the command waits, and for how long it has done so.
func (l *Line) Show(waiting []string, elapsed time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.terminal == nil || len(waiting) == 0 {
		return
	}
	l.shown = true
	noun := "volumes"
	if len(waiting) == 1 {
		noun = "volume"
	}
	named, more := waiting, ""
	if len(waiting) > maxNamed {
		named, more = waiting[:maxNamed], ", …"
	}
	begin, names := fmt.Sprintf("Waiting for %d %s (%ds): ", len(waiting), noun, int(elapsed.Seconds())), plaintext.Cell(strings.Join(named, ", "))+more
	if width := table.TerminalWidth(l.terminal); width > 0 {
		names = table.Shorten(names, max(1, width-1-len(begin))) // of a line that wraps, only the end could be cleared
	}
	fmt.Fprint(l.terminal, clearLine+begin+names)
}

// Clear takes the line away.
func (l *Line) Clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clear()
}

func (l *Line) clear() {
	if l.shown {
		fmt.Fprint(l.terminal, clearLine)
		l.shown = false
	}
}
