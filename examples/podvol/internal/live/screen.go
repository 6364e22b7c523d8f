package live

import (
	"bytes"
	"cmp"
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
	"github.com/podvol/podvol/examples/podvol/internal/rows"
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
	shown frame
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

func (s *screen) show(all []nodeserver.Volume, unanswered error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown = frame{all: all, unanswered: unanswered, known: s.shown.known || unanswered == nil, changed: time.Now()}
	return s.draw()
}

func (s *screen) silent(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown.silent = since
	_ = s.draw() // the next change says so
}

// draw draws the table. The caller holds the lock.
func (s *screen) draw() error {
	columns, height := table.TerminalSize(s.out)
	if columns == 0 {
		return errors.New("the terminal is gone")
	}
	lines, err := s.shown.lines(columns, height)
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

// frame is what a screen shows.
type frame struct {
	all        []nodeserver.Volume
	unanswered error // of [display].show
	known      bool  // a node has told of them
	changed    time.Time
	silent     time.Time // since when the node has not answered
}

// narrow terminals have no room for times.
const narrow = 60

// lines are a table that fits a terminal, below each volume what it waits for, and last by what all
// this is known. What it has no room for is counted.
func (f frame) lines(columns, height int) ([]string, error) {
	var out bytes.Buffer
	heads := []table.Column{{Head: "POD"}, {Head: "VOLUME"}, {Head: "STATE", Whole: true}, {Head: "SOURCE"}, {Head: "SINCE", Whole: true}}
	if columns < narrow {
		heads = heads[:4]
	}
	t, names := table.New(&out, heads...).Limit(columns), f.names()
	var cells [][]string
	var details []string
	foot := table.Wrap(f.foot(), columns)
	room := max(1, height-3-len(foot))
	for i, v := range f.all {
		since, below := "-", detail(v)
		if !v.Since.IsZero() {
			since = v.Since.Local().Format(time.TimeOnly)
		}
		if room--; below != "" {
			room--
		}
		if room < 0 && i > 0 && height > 0 {
			break
		}
		cells = append(cells, []string{names[v.PodUID], v.Volume, v.State, table.Dash(cmp.Or(v.Source, v.Claim)), since}[:len(heads)])
		details = append(details, below)
	}
	if err := t.Print(cells...); err != nil {
		return nil, err
	}
	var lines []string
	for i, line := range strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n") {
		lines = append(lines, line)
		if i > 0 && details[i-1] != "" {
			lines = append(lines, table.Cut("  "+plaintext.Cell(details[i-1]), columns))
		}
	}
	if len(f.all) == 0 {
		lines = []string{"No volumes."}
	}
	if left := len(f.all) - len(cells); left > 0 {
		lines = append(lines, table.Cut(fmt.Sprintf("… and %d more", left), columns))
	}
	return append(lines, foot...), nil
}

// foot says by what the volumes are known, and when that was.
func (f frame) foot() string {
	at := f.changed.Format(time.TimeOnly)
	switch noNode := errors.Is(f.unanswered, nodeserver.ErrNoNode); {
	case !f.silent.IsZero():
		return silenceText(f.silent)
	case f.unanswered == nil:
		return at + ", known by podvol run-node; Ctrl-C ends this."
	case noNode && f.known:
		return at + ", known by the records: podvol run-node has ended."
	default:
		return at + ", known by the records: " + reason(f.unanswered) + "."
	}
}

// names are the pods' names by their UIDs. Pods of one name are told apart by their nodes, or else
// by their UIDs.
func (f frame) names() map[string]string {
	shared, of := rows.SharedNames(f.all), make(map[string]string) // pods by name and node
	alike := make(map[string]bool)
	for _, v := range f.all {
		key := v.PodName() + " " + v.Node
		if uid, known := of[key]; known && uid != v.PodUID {
			alike[key] = true
		}
		of[key] = v.PodUID
	}
	names := make(map[string]string)
	for _, v := range f.all {
		name := v.PodName()
		switch {
		case !shared[name]:
		case v.Node == "" || alike[name+" "+v.Node]:
			name += " (" + v.PodUID + ")"
		default:
			name += " (" + v.Node + ")"
		}
		names[v.PodUID] = name
	}
	return names
}

// detail is the first line of what there is to say of a volume.
func detail(v nodeserver.Volume) string {
	text := v.Error
	switch {
	case v.WaitsFor != "":
		text = "waits for " + v.WaitsFor
	case v.Operation != "":
		text = v.Operation + " under way"
	}
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	return text
}
