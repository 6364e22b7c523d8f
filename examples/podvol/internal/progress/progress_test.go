package progress

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/podvol/podvol/examples/podvol/internal/table"
	"github.com/podvol/podvol/util/testenv/terminal"
)

// Of a line that wraps only the end would be cleared. A warning comes in its place, not behind it.
func TestALineFitsTheTerminalAndGivesWay(t *testing.T) {
	typist, program := terminal.Open(t)
	defer program.Close()
	terminal.Resize(t, program, 40)
	l := On(program)
	l.Show([]string{"a-volume-with-a-long-name", "another-one-of-that-kind"}, 7*time.Second)
	fmt.Fprintln(On(l), "podvol: a warning")
	l.Clear() // it is gone already
	fmt.Fprintln(l, "the end")
	lines := bufio.NewReader(typist)
	line, err := lines.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	shown, after, _ := strings.Cut(strings.TrimPrefix(line, clearLine), clearLine)
	if width := table.Width(shown); width > 39 || !strings.HasPrefix(shown, "Waiting for 2 volumes (7s): a-") || !strings.HasSuffix(shown, "kind") {
		t.Errorf("%d columns: %q", width, line)
	}
	if after != "podvol: a warning\r\n" {
		t.Errorf("in the line's place is %q", after)
	}
	if line, err := lines.ReadString('\n'); err != nil || line != "the end\r\n" {
		t.Errorf("then %q, %v", line, err)
	}
}

func TestElsewhereThereIsNoLine(t *testing.T) {
	var out bytes.Buffer
	l := On(&out)
	l.Show([]string{"a"}, time.Second)
	_, err := io.WriteString(l, "text")
	if l.Clear(); err != nil || out.String() != "text" {
		t.Errorf("%q, %v", out.String(), err)
	}
}
