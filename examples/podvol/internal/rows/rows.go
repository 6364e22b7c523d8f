// Package rows prints one row for each volume: as tables for people, as JSON and YAML for
// programs.
package rows

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/examples/podvol/internal/table"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Row is one volume as printed. Its keys are part of the commands' contract.
type Row struct {
	Pod string `json:"pod"`
	// PodUID and Node, as far as it is known, are told where several pods have that
	// name.
	PodUID          string  `json:"podUID,omitempty"`
	Node            string  `json:"node,omitempty"`
	Volume          string  `json:"volume"`
	Plugin          string  `json:"plugin"`
	Source          string  `json:"source"`
	State           string  `json:"state"`
	Path            string  `json:"path"`
	DurationSeconds float64 `json:"durationSeconds"`
	Error           string  `json:"error"`
	// Detail says what a state means that is no failure.
	Detail string `json:"detail,omitempty"`
	// Server is the trouble of the server of the volume's data.
	Server string `json:"server,omitempty"`
	// Fake: nothing was done. The state is that of a volume for which it would be.
	Fake bool `json:"fake,omitempty"`
	// KnownBy is [nodeserver.ByNode] or [nodeserver.ByRecords] where a command knows a row by either.
	KnownBy string `json:"knownBy,omitempty"`
	// Quiet: the error is said elsewhere, for all volumes at once.
	Quiet bool `json:"-"`
	gone  bool // unmounted, and was never mounted
}

// stateText is the state for people.
func (r Row) stateText() string {
	if r.Fake {
		switch volumemanager.VolumeState(r.State) {
		case volumemanager.StateMounted:
			return "would mount"
		case volumemanager.StateUnmounted:
			return "would unmount"
		}
	}
	if r.gone {
		return "gone"
	}
	return r.State
}

// neverMounted is what [volumemanager.StateUnmounted] means of a volume that was not mounted before.
const neverMounted = "it was never mounted"

// unusedDetail is what [volumemanager.StateUnused] means.
const unusedDetail = "no container mounts it"

// Of returns the row of a volume.
func Of(s volumemanager.VolumeStatus) Row {
	pod := s.Pod.String()
	if s.Pod.Name == "" {
		pod = string(s.PodUID)
	}
	r := Row{
		Pod: pod, Volume: s.Volume, Plugin: s.Plugin, Source: s.Source,
		State: string(s.State), Path: s.Path, DurationSeconds: s.Duration.Seconds(), Server: s.ServerTrouble(),
	}
	if s.Err != nil {
		r.Error = s.Err.Error()
	}
	if s.State == volumemanager.StateUnused {
		r.Detail = unusedDetail
	}
	return r
}

// Printer prints rows as they come, so that a slow volume holds no other row back.
type Printer interface {
	// Add prints rows, and the error of each to where errors go.
	Add(rows ...Row) error
	// Close ends the output.
	Close() error
}

// Formats are the formats of [NewPrinter]; the first one is the usual one.
func Formats() []string { return []string{"table", "wide", "json", "yaml"} }

// NewPrinter returns a printer of a format; one that it does not know is table.
func NewPrinter(format string, out, errOut io.Writer) Printer {
	switch format {
	case "json":
		return &jsonPrinter{out: out, err: errOut}
	case "yaml":
		return &yamlPrinter{out: out, err: errOut}
	}
	return newTable(format == "wide", out, errOut)
}

type tablePrinter struct {
	table *table.Table
	wide  bool
	err   io.Writer
	below bool // an error is below its row: both are at a terminal
}

// newTable makes room for what most rows need, since they come one by one.
func newTable(wide bool, out, errOut io.Writer) *tablePrinter {
	columns := []table.Column{{Head: "POD", Min: 13}, {Head: "VOLUME", Min: 10}, {Head: "STATE", Whole: true, Min: 9}, {Head: "SOURCE"}}
	below := table.TerminalWidth(out) > 0 && table.TerminalWidth(errOut) > 0
	if !wide {
		return &tablePrinter{table.New(out, columns...), false, errOut, below}
	}
	columns[3].Min = 24
	columns = append(columns, table.Column{Head: "PLUGIN", Min: 24}, table.Column{Head: "TIME", Min: 7}, table.Column{Head: "PATH"})
	return &tablePrinter{table.New(out, columns...).Unlimited(), true, errOut, below}
}

func (p *tablePrinter) cells(r Row) []string {
	pod := r.Pod
	if r.PodUID != "" {
		pod += " (" + PodText(r.PodUID, r.Node) + ")"
	}
	cells := []string{table.Dash(pod), table.Dash(r.Volume), r.stateText(), cmp.Or(r.Source, r.Detail, "-")}
	if p.wide {
		took := time.Duration(r.DurationSeconds * float64(time.Second))
		cells[3] = table.Dash(r.Source)
		cells = append(cells, table.Dash(r.Plugin), shortDuration(took), cmp.Or(r.Path, r.Detail, "-"))
	}
	return cells
}

// Add implements Printer. Rows of one call are aligned.
func (p *tablePrinter) Add(rows ...Row) error {
	for _, r := range rows {
		p.table.Measure(p.cells(r))
	}
	for _, r := range rows {
		if err := p.table.Print(p.cells(r)); err != nil {
			return err
		}
		switch {
		case r.Error != "":
		case r.Server != "":
			r.Error = "its server " + r.Server
		case r.State == string(volumemanager.StatePending) && r.Source != "": // else its row has the detail
			r.Error = r.Detail
		}
		if err := p.printError(r); err != nil {
			return err
		}
	}
	return nil
}

// printError names pod and volume where the row is elsewhere.
func (p *tablePrinter) printError(r Row) error {
	if !p.below || r.Error == "" || r.Quiet {
		return PrintError(p.err, r)
	}
	return table.Paragraph(p.err, "  ", r.Error)
}

// Close implements Printer.
func (p *tablePrinter) Close() error { return nil }

// PodText tells pods of one name apart.
func PodText(uid, node string) string {
	if node == "" {
		return uid
	}
	return uid + " of node " + node
}

// jsonPrinter prints one list, an element for each row.
type jsonPrinter struct {
	out, err io.Writer
	begun    bool
}

// Add implements Printer.
func (p *jsonPrinter) Add(rows ...Row) error {
	for _, r := range rows {
		element, err := json.MarshalIndent(r, "  ", "  ")
		if err != nil {
			return err
		}
		before := ",\n  "
		if !p.begun {
			p.begun, before = true, "[\n  "
		}
		if _, err := fmt.Fprintf(p.out, "%s%s", before, element); err != nil {
			return err
		}
		if err := PrintError(p.err, r); err != nil {
			return err
		}
	}
	return nil
}

// Close implements Printer.
func (p *jsonPrinter) Close() error {
	end := "\n]\n"
	if !p.begun {
		end = "[]\n"
	}
	_, err := io.WriteString(p.out, end)
	return err
}

// yamlPrinter prints one list, an element for each row.
type yamlPrinter struct {
	out, err io.Writer
	begun    bool
}

// Add implements Printer.
func (p *yamlPrinter) Add(rows ...Row) error {
	for _, r := range rows {
		p.begun = true
		element, err := yaml.Marshal([]Row{r})
		if err != nil {
			return err
		}
		if _, err := p.out.Write(element); err != nil {
			return err
		}
		if err := PrintError(p.err, r); err != nil {
			return err
		}
	}
	return nil
}

// Close implements Printer.
func (p *yamlPrinter) Close() error {
	if p.begun {
		return nil
	}
	_, err := io.WriteString(p.out, "[]\n")
	return err
}

// PrintError prints a row's error, indented, if it has one to print.
func PrintError(w io.Writer, r Row) error {
	if r.Error == "" || r.Quiet {
		return nil
	}
	return table.Paragraph(w, "  ", plaintext.Cell(strings.TrimSpace(r.Pod+" "+r.Volume))+": "+strings.TrimSpace(r.Error))
}

func shortDuration(d time.Duration) string {
	switch {
	case d <= 0:
		return "-"
	case d < time.Second:
		return fmt.Sprintf("%.1fms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.1fs", d.Seconds())
}
