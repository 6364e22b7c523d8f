package fields

import (
	"strings"
	"testing"
	"time"

	"github.com/podvol/podvol/examples/podvol/internal/table"
)

var example = []Field{
	{Name: "Pod", Text: "shop/web"},
	{Name: "Nothing"},
	{Name: "Volume größe", Of: []Field{
		{Name: "Error", Text: "mount of nas1:/export failed: " + strings.Repeat("no answer ", 10) + "\nOutput: x\x1b[31m\ty\u202e"},
		{Name: "Waits for", Text: "server nas1"},
		{Name: "Empty", Of: []Field{}},
	}},
}

func TestAPipeGetsWholeLines(t *testing.T) {
	got := strings.Join(lines(example, 0), "")
	want := "Pod:  shop/web\n" +
		"Volume größe:\n" +
		"  Error:      mount of nas1:/export failed: " + strings.TrimSpace(strings.Repeat("no answer ", 10)) + "\n" +
		`              Output: x\u001b[31m\ty\u202e` + "\n" +
		"  Waits for:  server nas1\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestATerminalIsNotWiderThanItIs(t *testing.T) {
	for _, columns := range []int{40, 60, 80} {
		got := lines(example, columns)
		for _, line := range got {
			if table.Width(strings.TrimSuffix(line, "\n")) > columns {
				t.Errorf("of %d columns: %q", columns, line)
			}
		}
		words := strings.Fields(strings.Join(got, ""))
		if whole := strings.Fields(strings.Join(lines(example, 0), "")); len(words) != len(whole) {
			t.Errorf("%d words of %d", len(words), len(whole))
		}
	}
	if got := len(lines(example, 12)); got != 5 {
		t.Errorf("a terminal too narrow for that has %d lines", got)
	}
}

func TestSince(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for then, want := range map[time.Time]string{{}: "", at: "2026-01-02T03:04:05Z (3m ago)"} {
		if got := Since(then, at.Add(3*time.Minute)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
