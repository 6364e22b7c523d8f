// Package table prints tables for people. On a terminal a table is as wide as that at
// most: columns are left out and long cells shortened in the middle. In a pipe or a file
// all is whole, and aligned all the same.
package table

import (
	"cmp"
	"io"
	"slices"
	"strings"

	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
)

// Column is one column of a table.
type Column struct {
	Head string
	// Short is the head where the table does not fit. Empty: Head.
	Short string
	// Spare columns are left out where the table does not fit, the last one first.
	Spare bool
	// Extra columns are left out where the table would not fit unless its cells became illegible,
	// the one with the highest number first; 0: it never is.
	Extra int
	// Whole cells are never shortened.
	Whole bool
	// Min is the width of the cells to expect, where rows come one by one.
	Min int
}

// Table prints rows as they come. One goroutine uses it.
type Table struct {
	out     io.Writer
	columns []Column
	// limit is the width of the terminal; 0: there is none.
	limit, gap int
	needed     []int // the widths of the widest cells so far
	begun      bool  // the head is printed, and the columns are chosen
	narrow     bool  // heads and gaps are short
	shown      []int // the columns that are not left out
}

// New returns an empty table. Its limit is the width of the terminal that out is.
func New(out io.Writer, columns ...Column) *Table {
	t := &Table{out: out, columns: columns, limit: TerminalWidth(out), gap: 2, needed: make([]int, len(columns))}
	for i, c := range columns {
		t.needed[i] = c.Min
		t.shown = append(t.shown, i)
	}
	return t
}

// Limit makes the table so many columns wide at most, whatever it is printed to, and returns it.
func (t *Table) Limit(columns int) *Table {
	t.limit = columns
	return t
}

// Unlimited has all cells printed whole, whatever the terminal's width is, and returns
// the table.
func (t *Table) Unlimited() *Table {
	t.limit = 0
	return t
}

// Gap sets the distance of columns where the table fits, two spaces without it, and returns
// the table.
func (t *Table) Gap(spaces int) *Table {
	t.gap = spaces
	return t
}

// Dash is a cell that is not empty.
func Dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// Measure makes room for rows that are printed later, one by one. A row has a cell for
// each column.
func (t *Table) Measure(rows ...[]string) {
	for _, row := range rows {
		for i, cell := range row {
			t.needed[i] = max(t.needed[i], Width(plaintext.Cell(cell)))
		}
	}
}

// Print prints rows, the heads above the first one. Without rows nothing is printed.
func (t *Table) Print(rows ...[]string) error {
	if len(rows) == 0 {
		return nil
	}
	t.Measure(rows...)
	if !t.begun {
		t.choose()
	}
	widths := t.fit()
	if !t.begun {
		t.begun = true
		heads := make([]string, len(t.columns))
		for i := range t.columns {
			heads[i] = t.head(i)
		}
		if err := t.line(heads, widths); err != nil {
			return err
		}
	}
	for _, row := range rows {
		if err := t.line(row, widths); err != nil {
			return err
		}
	}
	return nil
}

func (t *Table) line(cells []string, widths []int) error {
	var b strings.Builder
	for at, i := range t.shown {
		text := Shorten(plaintext.Cell(cells[i]), widths[i])
		b.WriteString(text)
		if at < len(t.shown)-1 {
			b.WriteString(strings.Repeat(" ", max(0, widths[i]-Width(text))+t.spaces()))
		}
	}
	_, err := io.WriteString(t.out, strings.TrimRight(b.String(), " ")+"\n")
	return err
}

func (t *Table) head(i int) string {
	if t.narrow && t.columns[i].Short != "" {
		return t.columns[i].Short
	}
	return t.columns[i].Head
}

func (t *Table) spaces() int {
	if t.narrow {
		return min(t.gap, 2)
	}
	return t.gap
}

// choose leaves out what does not fit.
func (t *Table) choose() {
	if t.fits(t.wanted()) {
		return
	}
	t.narrow = true
	for at := len(t.shown) - 1; at >= 0 && !t.fits(t.wanted()); at-- {
		if t.columns[t.shown[at]].Spare {
			t.shown = append(t.shown[:at], t.shown[at+1:]...)
		}
	}
	for !t.fits(t.legible()) {
		most := slices.MaxFunc(t.shown, func(a, b int) int { return cmp.Compare(t.columns[a].Extra, t.columns[b].Extra) })
		if t.columns[most].Extra == 0 {
			return
		}
		t.shown = slices.DeleteFunc(t.shown, func(i int) bool { return i == most })
	}
}

// short is the width to which cells are shortened before a column is left out.
const short = 12

// legible are the least widths at which cells still say something.
func (t *Table) legible() []int {
	widths := t.wanted()
	for i, c := range t.columns {
		if !c.Whole {
			widths[i] = min(widths[i], max(short, Width(t.head(i))))
		}
	}
	return widths
}

// wanted are the widths at which nothing is shortened.
func (t *Table) wanted() []int {
	widths := make([]int, len(t.columns))
	for i := range t.columns {
		widths[i] = max(t.needed[i], Width(t.head(i)))
	}
	return widths
}

func (t *Table) fits(widths []int) bool { return t.limit == 0 || t.total(widths) <= t.limit }

func (t *Table) total(widths []int) int {
	sum := (len(t.shown) - 1) * t.spaces()
	for _, i := range t.shown {
		sum += widths[i]
	}
	return sum
}

// fit takes from the widest columns until the table fits, or there is nothing more to take.
func (t *Table) fit() []int {
	widths := t.wanted()
	for !t.fits(widths) {
		widest := -1
		for _, i := range t.shown {
			if !t.columns[i].Whole && widths[i] > Width(t.head(i)) && (widest < 0 || widths[i] > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
	return widths
}
