package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/volume/volumemanager"
)

// row is one volume as printed; its keys are part of the command's contract.
type row struct {
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
}

func rowOf(s volumemanager.VolumeStatus) row {
	pod := s.Pod.String()
	if s.Pod.Name == "" {
		pod = string(s.PodUID)
	}
	r := row{
		Pod: pod, Volume: s.Volume, Plugin: s.Plugin, Source: s.Source,
		State: string(s.State), Path: s.Path, DurationSeconds: s.Duration.Seconds(), Server: s.ServerTrouble(),
	}
	if s.Err != nil {
		r.Error = s.Err.Error()
	}
	if s.State == volumemanager.StateUnused {
		r.Detail = "no container mounts it"
	}
	return r
}

// printer prints each row as it comes, so that a slow volume holds no other
// row back.
type printer interface {
	add(row) error
	// close ends the output.
	close() error
}

func newPrinter(format string, out, errOut io.Writer) (printer, error) {
	switch format {
	case "table":
		return &tablePrinter{out: out, err: errOut}, nil
	case "json":
		return &jsonPrinter{out: out, err: errOut}, nil
	case "yaml":
		return &yamlPrinter{out: out, err: errOut}, nil
	}
	return nil, usagef("-o %q must be table, json or yaml", format)
}

// tablePrinter prints columns of fixed widths, the widest last, since it does
// not know the rows to come.
type tablePrinter struct {
	out, err io.Writer
	begun    bool
}

const tableFormat = "%-32s %-20s %-27s %-9s %8s  %-28s %s\n"

func (p *tablePrinter) add(r row) error {
	if !p.begun {
		p.begun = true
		if _, err := fmt.Fprintf(p.out, tableFormat, "POD", "VOLUME", "PLUGIN", "STATE", "TIME", "SOURCE", "PATH"); err != nil {
			return err
		}
	}
	took := time.Duration(r.DurationSeconds * float64(time.Second))
	pod := r.Pod
	if r.PodUID != "" {
		pod += " (" + podText(r.PodUID, r.Node) + ")"
	}
	_, err := fmt.Fprintf(p.out, tableFormat, dash(pod), dash(r.Volume), dash(r.Plugin), r.State, shortDuration(took), dash(r.Source), cmp.Or(plaintext.Cell(r.Path), plaintext.Cell(r.Detail), "-"))
	if err != nil {
		return err
	}
	if r.Error == "" && r.Server != "" {
		_, err := fmt.Fprintf(p.err, "  %s %s: its server %s\n", plaintext.Cell(r.Pod), plaintext.Cell(r.Volume), plaintext.Cell(r.Server))
		return err
	}
	return printError(p.err, r)
}

func (p *tablePrinter) close() error { return nil }

// podText tells pods of one name apart.
func podText(uid, node string) string {
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

func (p *jsonPrinter) add(r row) error {
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
	return printError(p.err, r)
}

func (p *jsonPrinter) close() error {
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

func (p *yamlPrinter) add(r row) error {
	p.begun = true
	element, err := yaml.Marshal([]row{r})
	if err != nil {
		return err
	}
	if _, err := p.out.Write(element); err != nil {
		return err
	}
	return printError(p.err, r)
}

func (p *yamlPrinter) close() error {
	if p.begun {
		return nil
	}
	_, err := io.WriteString(p.out, "[]\n")
	return err
}

// printError prints a row's error, indented, to where errors go.
func printError(w io.Writer, r row) error {
	if r.Error == "" {
		return nil
	}
	_, err := fmt.Fprintf(w, "  %s %s: %s\n", plaintext.Cell(r.Pod), plaintext.Cell(r.Volume), strings.ReplaceAll(strings.TrimSpace(r.Error), "\n", "\n    "))
	return err
}

// dash is a cell of a table.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return plaintext.Cell(s)
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

// rowStream prints a row whenever a volume's state, or its error, is another
// one than was printed last. One goroutine uses it.
type rowStream struct {
	add     func(row) error
	rename  func(string) string
	printed map[rowKey]string
}

func newRowStream(format string, out, errOut io.Writer) (*rowStream, error) {
	r := &rowStream{printed: make(map[rowKey]string), rename: func(s string) string { return s }}
	switch format {
	case "table":
		r.add = (&tablePrinter{out: out, err: errOut}).add
	case "json":
		encoder := json.NewEncoder(out)
		r.add = func(row row) error { return encoder.Encode(row) }
	default:
		return nil, usagef("-o %q must be table or json", format)
	}
	return r, nil
}

func (r *rowStream) print(v volumemanager.VolumeStatus) error {
	row := rowOf(v)
	row.Path, row.Error, row.Source = r.rename(row.Path), r.rename(row.Error), r.rename(row.Source)
	what := strings.Join([]string{row.State, row.Source, row.Path, row.Error}, "\x00")
	if r.printed[keyOf(v)] == what {
		return nil
	}
	r.printed[keyOf(v)] = what
	if v.State == volumemanager.StateUnmounted {
		delete(r.printed, keyOf(v))
	}
	return r.add(row)
}
