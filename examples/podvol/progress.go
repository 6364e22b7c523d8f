package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
)

// progress is one line on a terminal that says what is waited for; elsewhere
// it is silent.
type progress struct {
	terminal io.Writer // nil where there is none
	shown    bool
}

func newProgress(w io.Writer) *progress {
	if f, ok := plaintext.AsGiven(w).(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &progress{terminal: f}
	}
	return &progress{}
}

const clearLine = "\r\x1b[K"

// maxNamed is how many volumes the line names.
const maxNamed = 3

func (p *progress) show(waiting []string, elapsed time.Duration) {
	if p.terminal == nil || len(waiting) == 0 {
		return
	}
	p.shown = true
	noun := "volumes"
	if len(waiting) == 1 {
		noun = "volume"
	}
	named, more := waiting, ""
	if len(waiting) > maxNamed {
		named, more = waiting[:maxNamed], ", …"
	}
	fmt.Fprintf(p.terminal, "%sWaiting for %d %s (%ds): %s%s", clearLine, len(waiting), noun, int(elapsed.Seconds()), plaintext.Cell(strings.Join(named, ", ")), more)
}

func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.terminal, clearLine)
		p.shown = false
	}
}
