package rows

import (
	"encoding/json"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/podvol/internal/nodeserver"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Key is the volume that a row is about.
type Key struct {
	Pod    types.UID
	Volume string
}

// KeyOf returns the key of a volume.
func KeyOf(v volumemanager.VolumeStatus) Key { return Key{v.PodUID, v.Volume} }

// Stream prints a row whenever a volume's state, its error, or whether its server answers is not
// as it was printed last. One goroutine uses it.
type Stream struct {
	// Edit may change a row before it is printed.
	Edit    func(*Row)
	add     func(Row) error
	expect  func(Row)
	printed map[Key]string
	mounted map[Key]bool // of those that are printed
}

// StreamFormats are the formats of [NewStream]; the first one is the usual one.
func StreamFormats() []string { return []string{"table", "wide", "json"} }

// NewStream returns a stream that prints a table, or JSON, an object a line.
func NewStream(format string, out, errOut io.Writer) *Stream {
	s := &Stream{printed: make(map[Key]string), mounted: make(map[Key]bool), Edit: func(*Row) {}}
	if format == "json" {
		encoder := json.NewEncoder(out)
		s.add, s.expect = func(r Row) error { return encoder.Encode(r) }, func(Row) {}
	} else {
		t := newTable(format == "wide", out, errOut)
		s.add, s.expect = func(r Row) error { return t.Add(r) }, func(r Row) { t.table.Measure(t.cells(r)) }
	}
	return s
}

// Expect makes room for rows like this one.
func (s *Stream) Expect(r Row) { s.expect(r) }

// Print prints a row for a volume if there is news of it.
func (s *Stream) Print(v volumemanager.VolumeStatus) error {
	key, row := KeyOf(v), Of(v)
	if v.State == volumemanager.StateUnmounted && v.Ended == "" && !s.mounted[key] {
		row.Detail, row.gone = neverMounted, true // no tear-down has ended
	}
	return s.PrintRow(key, row)
}

// acceptedState is the last state of a manifest that was refused.
const acceptedState = "no longer refused"

// Gone prints that a volume, or a refusal, is gone of which this row was printed last.
func (s *Stream) Gone(key Key, last Row) error {
	last.gone = !s.mounted[key] && last.State == string(volumemanager.StatePending)
	state := string(volumemanager.StateUnmounted)
	if last.State == nodeserver.Refused {
		state = acceptedState
	}
	last.State, last.Detail, last.Error, last.Server = state, "", "", ""
	if last.gone {
		last.Detail = neverMounted
	}
	return s.PrintRow(key, last)
}

// PrintRow prints a row if there is news of its volume.
func (s *Stream) PrintRow(key Key, row Row) error {
	s.Edit(&row)
	what := strings.Join([]string{row.State, row.Source, row.Path, row.Error, row.Server}, "\x00")
	if s.printed[key] == what {
		return nil
	}
	s.printed[key] = what
	switch row.State {
	case string(volumemanager.StateMounted):
		s.mounted[key] = true
	case string(volumemanager.StateUnmounted), acceptedState:
		delete(s.printed, key)
		delete(s.mounted, key)
	}
	return s.add(row)
}
