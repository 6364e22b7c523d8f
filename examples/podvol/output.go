package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/podvol/podvol/volume/volumemanager"
)

// row is one volume as printed; its keys are part of the command's contract.
type row struct {
	Pod             string  `json:"pod"`
	Volume          string  `json:"volume"`
	Plugin          string  `json:"plugin"`
	Source          string  `json:"source"`
	State           string  `json:"state"`
	Path            string  `json:"path"`
	DurationSeconds float64 `json:"durationSeconds"`
	Error           string  `json:"error"`
}

func rowOf(s volumemanager.VolumeStatus) row {
	pod := s.Pod.String()
	if s.Pod.Name == "" {
		pod = string(s.PodUID)
	}
	r := row{
		Pod: pod, Volume: s.Volume, Plugin: s.Plugin, Source: s.Source,
		State: string(s.State), Path: s.Path, DurationSeconds: s.Duration.Seconds(),
	}
	if s.Err != nil {
		r.Error = s.Err.Error()
	}
	return r
}

// printer prints rows to out, as they come or all at the end.
type printer interface {
	// add prints a row now, or keeps it.
	add(row) error
	// close prints what was kept.
	close() error
}

func newPrinter(format string, out, errOut io.Writer) (printer, error) {
	switch format {
	case "table":
		return &tablePrinter{out: out, err: errOut}, nil
	case "json":
		return &documentPrinter{out: out, err: errOut, marshal: marshalJSON}, nil
	case "yaml":
		return &documentPrinter{out: out, err: errOut, marshal: func(rows []row) ([]byte, error) { return yaml.Marshal(rows) }}, nil
	}
	return nil, usagef("-o %q must be table, json or yaml", format)
}

func marshalJSON(rows []row) ([]byte, error) {
	text, err := json.MarshalIndent(rows, "", "  ")
	return append(text, '\n'), err
}

// tablePrinter prints each row at once, so that a slow volume holds no other
// row back; therefore the columns have fixed widths, the widest last.
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
	_, err := fmt.Fprintf(p.out, tableFormat, dash(r.Pod), dash(r.Volume), dash(r.Plugin), r.State, shortDuration(took), dash(r.Source), dash(r.Path))
	if err != nil {
		return err
	}
	return printError(p.err, r)
}

func (p *tablePrinter) close() error { return nil }

// documentPrinter prints one list of all rows.
type documentPrinter struct {
	out, err io.Writer
	rows     []row
	marshal  func([]row) ([]byte, error)
}

func (p *documentPrinter) add(r row) error {
	p.rows = append(p.rows, r)
	return nil
}

func (p *documentPrinter) close() error {
	if p.rows == nil {
		p.rows = []row{}
	}
	text, err := p.marshal(p.rows)
	if err != nil {
		return err
	}
	if _, err := p.out.Write(text); err != nil {
		return err
	}
	for _, r := range p.rows {
		if err := printError(p.err, r); err != nil {
			return err
		}
	}
	return nil
}

// printError prints a row's error, indented, to where errors go.
func printError(w io.Writer, r row) error {
	if r.Error == "" {
		return nil
	}
	_, err := fmt.Fprintf(w, "  %s %s: %s\n", r.Pod, r.Volume, strings.ReplaceAll(strings.TrimSpace(r.Error), "\n", "\n    "))
	return err
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
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
