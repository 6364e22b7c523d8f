// Package fields prints what is known of one thing as kubectl describe does: names of fields, and
// aligned beside them what these are. At a terminal long texts go on below themselves.
package fields

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/examples/podvol/internal/table"
)

// Field is a name with a text, or with fields of its own. One without either is not printed.
type Field struct {
	Name, Text string
	Of         []Field
}

// Print prints fields. Lines of a text stay lines.
func Print(out io.Writer, all []Field) error {
	_, err := io.WriteString(out, strings.Join(lines(all, table.TerminalWidth(out)), ""))
	return err
}

// lines are the fields, in so many columns; 0: in as many as it takes.
func lines(all []Field, columns int) (printed []string) {
	all = slices.Clone(all)
	longest := 0
	for i, f := range all {
		all[i].Name = plaintext.Cell(f.Name)
		if f.Text != "" {
			longest = max(longest, table.Width(all[i].Name))
		}
	}
	for _, f := range all {
		switch {
		case f.Text != "":
			head := f.Name + ":" + strings.Repeat(" ", longest-table.Width(f.Name)+2)
			for i, line := range table.Wrap(f.Text, columns-len(head)) {
				if i > 0 {
					head = strings.Repeat(" ", longest+3)
				}
				printed = append(printed, head+line+"\n")
			}
		case len(f.Of) > 0:
			printed = append(printed, f.Name+":\n")
			for _, line := range lines(f.Of, max(columns-2, 0)) {
				printed = append(printed, "  "+line)
			}
		}
	}
	return printed
}

// Since is a time in the past as people read it; empty for none.
func Since(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s (%s ago)", t.UTC().Format(time.RFC3339), duration.HumanDuration(max(0, now.Sub(t))))
}
