package main

import (
	"encoding/json"
	"io"
	"strings"

	"github.com/podvol/podvol/volume/volumemanager"
)

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
