// Package problems prints what podvol fsck has found.
package problems

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/podvol/podvol/examples/podvol/internal/choice"
	"github.com/podvol/podvol/examples/podvol/internal/ownplugins"
	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Row is one problem as printed. Its keys are part of the command's contract.
type Row struct {
	Problem  string `json:"problem"`
	Pod      string `json:"pod,omitempty"`
	Volume   string `json:"volume,omitempty"`
	Path     string `json:"path,omitempty"`
	PID      int    `json:"pid,omitempty"`
	Detail   string `json:"detail"`
	Repair   string `json:"repair,omitempty"`
	Advice   string `json:"advice,omitempty"`
	Repaired bool   `json:"repaired"`
	Error    string `json:"error,omitempty"`
}

// List prints problems, text as they come, JSON and YAML at the end.
type List struct {
	out    io.Writer
	format string
	// Rows are the problems so far.
	Rows []Row
	// Count is all problems, Open those that are not repaired, Repairable those
	// of them that can be.
	Count, Open, Repairable int
	// Missing says which drivers the command line lacks; Advised: a problem has said so.
	Missing ownplugins.Missing
	Advised bool
}

// Formats are the formats of lists; the first one is the usual one.
func Formats() []string { return []string{"text", "json", "yaml"} }

// NewList returns a list without problems.
func NewList(format string, out io.Writer) *List {
	return &List{out: out, format: format, Rows: []Row{}}
}

// Add adds a problem; tried: its repair was, and err is its error.
func (l *List) Add(p volumemanager.Problem, tried bool, err error) {
	row := Row{
		Problem: string(p.Kind), Volume: p.Volume, Path: p.Path, PID: p.PID, Detail: p.Err.Error(),
		Repair: p.Repair, Advice: p.Advice, Repaired: tried && err == nil,
	}
	switch {
	case p.Pod.Name != "":
		row.Pod = p.Pod.String()
	case p.PodUID != "":
		row.Pod = string(p.PodUID)
	}
	if err != nil {
		row.Error = err.Error()
	}
	if len(l.Missing.Sentences) > 0 && errors.Is(p.Err, volume.ErrNoPlugin) {
		row.Advice, l.Advised = strings.Join(l.Missing.Sentences, "; "), true
	}
	l.Count++
	if !row.Repaired {
		l.Open++
		if p.Repair != "" {
			l.Repairable++
		}
	}
	l.Rows = append(l.Rows, row)
	if l.format == "text" {
		l.print(row)
	}
}

func (l *List) print(r Row) {
	fmt.Fprintf(l.out, "%s: %s\n", r.Problem, plaintext.Cell(r.Path))
	if r.Pod != "" {
		fmt.Fprintf(l.out, "  pod:    %s\n", plaintext.Cell(r.Pod))
	}
	fmt.Fprintf(l.out, "  wrong:  %s\n", r.Detail)
	switch {
	case r.Repaired:
		fmt.Fprintf(l.out, "  done:   %s\n", r.Repair)
	case r.Error != "":
		fmt.Fprintf(l.out, "  failed: %s: %s\n", r.Repair, r.Error)
	case r.Repair != "":
		fmt.Fprintf(l.out, "  repair: %s\n", r.Repair)
	}
	if r.Advice != "" {
		fmt.Fprintf(l.out, "  advice: %s\n", r.Advice)
	}
}

// Close prints what is printed at the end.
func (l *List) Close() error {
	if l.format == "text" {
		return nil
	}
	return choice.Print(l.out, l.format, l.Rows)
}
