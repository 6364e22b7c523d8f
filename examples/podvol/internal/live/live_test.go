package live

import (
	"bytes"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podvol/podvol/examples/podvol/internal/nodeserver"
	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/examples/podvol/internal/table"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/nodeagent/manifestdir"
	"github.com/podvol/podvol/volume/volumemanager"
)

func volume(name, state, failed string) nodeserver.Volume {
	return nodeserver.Volume{Namespace: "shop", Pod: "web", PodUID: "u", Volume: name, State: state, Error: failed, Source: "nas1:/" + strings.Repeat("x", 60), Since: time.Unix(1, 0)}
}

func TestAPipeGetsChangedRowsAlone(t *testing.T) {
	var out, errOut bytes.Buffer
	l := newLines("table", &out, &errOut)
	for _, all := range [][]nodeserver.Volume{
		{volume("a", "mounted", ""), volume("b", "failed", "no answer")},
		{volume("a", "mounted", ""), volume("b", "failed", "no answer")},
		{volume("a", "mounted", ""), volume("b", "mounted", "")},
		{volume("b", "mounted", "")},
		{volume("a", "mounted", ""), volume("b", "mounted", "")},
	} {
		if err := l.show(all); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line)[1:3], " "))
	}
	if want := "VOLUME STATE|a mounted|b failed|b mounted|a unmounted|a mounted"; strings.Join(got, "|") != want {
		t.Errorf("%q, want %q", got, want)
	}
	if strings.Count(errOut.String(), "no answer") != 1 {
		t.Errorf("%s", errOut.String())
	}
}

// A volume that was found beside the pod's of its name is another one, whichever goes first.
func TestVolumesOfOneName(t *testing.T) {
	pods, found := volume("a", "mounted", ""), volume("a", "failed", "")
	pods.Path, found.Path = "/pods/u/volumes/csi/a", "/pods/u/volumes/nfs/a"
	for _, tc := range []struct{ stays, goes nodeserver.Volume }{{pods, found}, {found, pods}} {
		var out, errOut bytes.Buffer
		l := newLines("wide", &out, &errOut)
		for _, all := range [][]nodeserver.Volume{{pods, found}, {found, pods}, {tc.stays}} {
			slices.SortFunc(all, rows.Compare)
			if err := l.show(all); err != nil {
				t.Fatal(err)
			}
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 4 || !strings.Contains(lines[1], " mounted ") || !strings.Contains(lines[2], " failed ") ||
			!strings.Contains(lines[3], " unmounted ") || !strings.Contains(lines[3], tc.goes.Path) {
			t.Errorf("%s goes: %q", tc.goes.Path, lines)
		}
	}
}

func TestAFrameFitsTheTerminal(t *testing.T) {
	var all []nodeserver.Volume
	for range 50 {
		all = append(all, volume("data\x1b[2J", "failed", "no answer\nadvice"))
	}
	all[0].WaitsFor, all[1].Operation, all[1].Error = "server nas1 to answer", "set-up", ""
	for columns, height := range map[int]int{80: 24, 120: 10, 200: 60} {
		lines, err := frame(all, columns, height)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(lines, "\n")
		if len(lines) >= height || height < 50 && !strings.Contains(text, "more") || height > 50 && len(lines) != 51 {
			t.Errorf("%d lines at a height of %d", len(lines), height)
		}
		for _, line := range lines {
			if table.Width(line) > columns || strings.Contains(line, "\x1b") {
				t.Errorf("at %d columns: %q", columns, line)
			}
		}
		if columns == 200 && (!strings.Contains(lines[1], "server nas1 to answer") || !strings.Contains(lines[2], "set-up under way") || !strings.Contains(lines[3], "no answer") || strings.Contains(text, "advice")) {
			t.Errorf("%s", text)
		}
	}
	if lines, err := frame(nil, 80, 24); err != nil || strings.Join(lines, "") != "No volumes." {
		t.Errorf("%q, %v", lines, err)
	}
}

func TestRedrawOverwritesTheLastTable(t *testing.T) {
	for _, tc := range []struct {
		shown, lines []string
		columns      int
		want         string
	}{
		{nil, []string{"a", "b"}, 80, "a\x1b[K\r\nb\x1b[K\r\n\x1b[J"},
		{[]string{"a", "b"}, []string{"c"}, 80, "\x1b[2A\rc\x1b[K\r\n\x1b[J"},
		{[]string{strings.Repeat("x", 80), ""}, []string{"c"}, 40, "\x1b[3A\rc\x1b[K\r\n\x1b[J"}, // the first one was broken
	} {
		if got := redraw(tc.shown, tc.lines, tc.columns); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}

// A user who may not see the sockets of nodes watches the records all the same.
func TestChangesWithoutTheRightToAskNodes(t *testing.T) {
	root := t.TempDir()
	denied := func() (*manifestdir.Watch, error) {
		return nil, &fs.PathError{Op: "watch", Path: "/run", Err: fs.ErrPermission}
	}
	c, err := newChanges(t.Context(), root, fakemount.New().Table(), denied)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if err := os.MkdirAll(volumemanager.StateDir(root), 0o700); err != nil {
		t.Fatal(err)
	}
	if !c.wait(t.Context()) {
		t.Error("a change was not told")
	}
}
