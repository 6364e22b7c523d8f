package table

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/terminal"
)

func TestWidthCountsColumnsOfATerminal(t *testing.T) {
	for text, want := range map[string]int{"": 0, "web-0": 5, "größe": 5, "gro\u0308ße": 5, "容量": 4, "ｘ": 2, "…": 1, "a\u200db": 2} {
		if got := Width(text); got != want {
			t.Errorf("%q takes %d columns, want %d", text, got, want)
		}
	}
}

func TestShortenKeepsBothEnds(t *testing.T) {
	for _, tc := range []struct {
		text    string
		columns int
		want    string
	}{
		{"default/web-0", 13, "default/web-0"}, {"default/web-0", 9, "defa…eb-0"}, {"default/web-0", 8, "defa…b-0"},
		{"default/web-0", 1, "…"}, {"容量容量容量", 7, "容…容量"}, {"容量容量容量", 12, "容量容量容量"}, {"ae\u0301bcdo\u0301", 5, "ae\u0301…do\u0301"},
		{"abcde\u0301fg", 5, "ab…fg"},
	} {
		got := Shorten(tc.text, tc.columns)
		if got != tc.want || Width(got) > tc.columns {
			t.Errorf("%q in %d columns: %q, want %q", tc.text, tc.columns, got, tc.want)
		}
	}
}

// example has what tables have: names of any length, a state, columns to leave out.
func example(out io.Writer) *Table {
	return New(out, Column{Head: "POD"}, Column{Head: "STATE", Whole: true}, Column{Head: "ACCESS MODES", Short: "MODES"}, Column{Head: "SOURCE"}, Column{Head: "ATTRIBUTES CLASS", Spare: true})
}

var long = []string{"default/" + strings.Repeat("web-", 15) + "0", "not used", "RWO,RWX", "server.example:/exports/容量/" + strings.Repeat("x", 60), "<unset>"}

func TestAPipeGetsAllWholeAndAligned(t *testing.T) {
	var out bytes.Buffer
	if err := example(&out).Print([]string{"default/a", "mounted", "RWO", "disk\x1b[31m", ""}, long); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "POD ") || !strings.HasSuffix(lines[0], "ATTRIBUTES CLASS") {
		t.Fatalf("%q", lines)
	}
	for _, cell := range long {
		if !strings.Contains(lines[2], cell) {
			t.Errorf("%q lacks %q", lines[2], cell)
		}
	}
	at := strings.Index(lines[0], "STATE")
	if lines[1][at:at+7] != "mounted" || lines[2][at:at+8] != "not used" || !strings.Contains(lines[1], `disk\u001b[31m`) || strings.HasSuffix(lines[1], " ") {
		t.Errorf("%q", lines)
	}
}

// atTerminal returns the lines that a terminal of a width shows of what is printed.
func atTerminal(t *testing.T, columns int, print func(*os.File) error) (lines []string) {
	t.Helper()
	typist, program := terminal.Open(t)
	if columns > 0 {
		terminal.Resize(t, program, columns)
	}
	printed := make(chan error, 1)
	go func() {
		err := print(program)
		_, _ = io.WriteString(program, "end\n")
		printed <- err
	}()
	for scanner := bufio.NewScanner(typist); scanner.Scan() && scanner.Text() != "end"; {
		lines = append(lines, scanner.Text())
	}
	if err := <-printed; err != nil {
		t.Fatal(err)
	}
	program.Close()
	return lines
}

func TestATableFitsItsTerminal(t *testing.T) {
	for columns, has := range map[int][]string{
		0: {"MODES", "not used", "RWO,RWX"}, 80: {"MODES", "not used"}, 50: {"POD", "…"}, 120: {"SOURCE"}, 240: {"ACCESS MODES", "ATTRIBUTES CLASS", long[0], long[3]},
	} {
		lines := atTerminal(t, columns, func(out *os.File) error {
			return example(out).Print(long, []string{"default/a", "mounted", "RWO", "disk", ""})
		})
		all, limit := strings.Join(lines, "\n"), columns
		if columns == 0 {
			limit = 80
		}
		for _, line := range lines {
			if Width(line) > limit {
				t.Errorf("at %d columns a line takes %d: %q", columns, Width(line), line)
			}
		}
		for _, text := range has {
			if !strings.Contains(all, text) {
				t.Errorf("at %d columns there is no %q:\n%s", columns, text, all)
			}
		}
		if len(lines) != 3 || columns < 240 && strings.Contains(all, "ATTRIBUTES") {
			t.Errorf("at %d columns:\n%s", columns, all)
		}
	}
}

func TestAnUnlimitedTableLosesNothingAtATerminal(t *testing.T) {
	lines := atTerminal(t, 40, func(out *os.File) error { return example(out).Unlimited().Print(long) })
	for i, cell := range long {
		if len(lines) != 2 || !strings.Contains(lines[1], cell) {
			t.Errorf("cell %d is not whole: %q", i, lines)
		}
	}
}

// Rows that come later fit as well, whatever was printed before.
func TestLaterRowsFit(t *testing.T) {
	lines := atTerminal(t, 80, func(out *os.File) error {
		rows := example(out)
		for _, row := range [][]string{{"default/a", "mounted", "RWO", "disk", ""}, long, {"default/b", "failed", "", "disk", ""}} {
			if err := rows.Print(row); err != nil {
				return err
			}
		}
		return nil
	})
	if len(lines) != 4 {
		t.Fatalf("%q", lines)
	}
	for _, line := range lines {
		if Width(line) > 80 {
			t.Errorf("a line takes %d columns: %q", Width(line), line)
		}
	}
}

func TestNoRowsPrintNothing(t *testing.T) {
	var out bytes.Buffer
	if err := example(&out).Print(); err != nil || out.Len() > 0 {
		t.Errorf("%v: %q", err, &out)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestErrorsOfTheOutputAreReturned(t *testing.T) {
	if err := example(broken{}).Print(long); err != io.ErrClosedPipe {
		t.Errorf("%v", err)
	}
}

// What is left of a narrow table says something: names of one letter and dots do not.
func TestANarrowTerminalHasFewerColumns(t *testing.T) {
	cells := []string{"shop", "postgres-data-0", "Bound", "pvc-866f0880-02a3-89d877", "10Gi", "storage-class-kept"}
	for columns, want := range map[int]string{
		0: "NAMESPACE NAME STATUS VOLUME CAPACITY CLASS", 80: "NAMESPACE NAME STATUS VOLUME CAPACITY CLASS",
		60: "NAMESPACE NAME STATUS VOLUME CAPACITY", 47: "NAMESPACE NAME STATUS VOLUME", 40: "NAME STATUS VOLUME", 20: "NAME STATUS VOLUME",
	} {
		var out bytes.Buffer
		narrow := New(&out, Column{Head: "NAMESPACE", Extra: 1}, Column{Head: "NAME"}, Column{Head: "STATUS", Whole: true}, Column{Head: "VOLUME"},
			Column{Head: "CAPACITY", Whole: true, Extra: 2}, Column{Head: "CLASS", Extra: 3}).Limit(columns)
		if err := narrow.Print(cells); err != nil {
			t.Fatal(err)
		}
		head, row, _ := strings.Cut(strings.TrimSpace(out.String()), "\n")
		if got := strings.Join(strings.Fields(head), " "); got != want || columns >= 40 && (Width(head) > columns || Width(row) > columns) {
			t.Errorf("at %d columns: %q, want %q\n%s", columns, got, want, row)
		}
	}
}
