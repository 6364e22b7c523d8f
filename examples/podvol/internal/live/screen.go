package live

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/examples/podvol/internal/nodeserver"
	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/examples/podvol/internal/table"
)

// screen draws a table in place: it goes up to the first line of the last one and overwrites it, in
// one write, so that nothing flickers. What was on the terminal before stays above.
type screen struct {
	out     io.Writer // takes control sequences as they are
	resized chan os.Signal
	done    chan struct{}
	ended   sync.WaitGroup

	mu    sync.Mutex
	all   []nodeserver.Volume
	drawn []string // the lines of the last table
}

func newScreen(out io.Writer) *screen {
	s := &screen{out: plaintext.AsGiven(out), resized: make(chan os.Signal, 1), done: make(chan struct{})}
	signal.Notify(s.resized, unix.SIGWINCH)
	s.ended.Go(func() {
		for {
			select {
			case <-s.resized:
				s.mu.Lock()
				_ = s.draw() // the next change says so
				s.mu.Unlock()
			case <-s.done:
				return
			}
		}
	})
	return s
}

// close leaves the last table.
func (s *screen) close() {
	signal.Stop(s.resized)
	close(s.done)
	s.ended.Wait()
}

func (s *screen) show(all []nodeserver.Volume) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = all
	return s.draw()
}

// draw draws the table. The caller holds the lock.
func (s *screen) draw() error {
	columns, height := table.TerminalSize(s.out)
	if columns == 0 {
		return errors.New("the terminal is gone")
	}
	lines, err := frame(s.all, columns, height)
	if err != nil {
		return err
	}
	_, err = io.WriteString(s.out, redraw(s.drawn, lines, columns))
	s.drawn = lines
	return err
}

// redraw is what a terminal must get to show lines instead of those that it shows.
func redraw(shown, lines []string, columns int) string {
	up := 0
	for _, line := range shown { // a terminal that has become narrower has broken them
		up += max(1, (table.Width(line)+columns-1)/columns)
	}
	var b strings.Builder
	if up > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r", up)
	}
	for _, line := range lines {
		b.WriteString(line + "\x1b[K\r\n")
	}
	b.WriteString("\x1b[J")
	return b.String()
}

// frame are the lines of a table that fits a terminal; what it has no room for is counted.
func frame(all []nodeserver.Volume, columns, height int) ([]string, error) {
	var out bytes.Buffer
	t := table.New(&out, table.Column{Head: "POD"}, table.Column{Head: "VOLUME"}, table.Column{Head: "STATE", Whole: true}, table.Column{Head: "SINCE", Whole: true},
		table.Column{Head: "SOURCE"}, table.Column{Head: "WAITS FOR, OR ERROR", Short: "WAITS FOR"}).Limit(columns)
	cells := make([][]string, len(all))
	for i, v := range all {
		since := "-"
		if !v.Since.IsZero() {
			since = v.Since.Local().Format(time.TimeOnly)
		}
		cells[i] = []string{v.PodName(), v.Volume, v.State, since, table.Dash(v.Source), table.Dash(detail(v))}
	}
	left := 0
	if room := max(1, height-3); len(cells) > room && height > 0 {
		left = len(cells) - room
		cells = cells[:room]
	}
	if err := t.Print(cells...); err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	switch {
	case len(all) == 0:
		lines = []string{"No volumes."}
	case left > 0:
		lines = append(lines, table.Shorten(fmt.Sprintf("… and %d more", left), columns))
	}
	return lines, nil
}

// detail is the first line of what there is to say of a volume.
func detail(v nodeserver.Volume) string {
	text := v.Error
	switch {
	case v.WaitsFor != "":
		text = v.WaitsFor
	case v.Operation != "":
		text = v.Operation + " under way"
	}
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	return text
}
