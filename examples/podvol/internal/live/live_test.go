package live

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
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
		{volume("a", "mounted", ""), volume("b", "failed", "no answer"), volume("c", "pending", "")},
		{volume("a", "mounted", ""), volume("b", "failed", "no answer"), volume("c", "pending", "")},
		{volume("a", "mounted", ""), volume("b", "mounted", "")},
		{volume("b", "mounted", "")},
		{volume("a", "mounted", ""), volume("b", "mounted", "")},
	} {
		if err := l.show(all, nil); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line)[1:3], " "))
	}
	if want := "VOLUME STATE|a mounted|b failed|c pending|b mounted|c gone|a unmounted|a mounted"; strings.Join(got, "|") != want {
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
			if err := l.show(all, nil); err != nil {
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
	f := frame{all: all, unanswered: errNotYet}
	for columns, height := range map[int]int{40: 24, 80: 24, 120: 10, 200: 110} {
		lines, err := f.lines(columns, height)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(lines, "\n")
		if len(lines) >= height || height < 50 && !strings.Contains(text, "more") || height > 50 && len(lines) != 102 {
			t.Errorf("%d lines at a height of %d", len(lines), height)
		}
		for _, line := range lines {
			if table.Width(line) > columns || strings.Contains(line, "\x1b") {
				t.Errorf("at %d columns: %q", columns, line)
			}
		}
		if lines[2] != "  waits for server nas1 to answer" || lines[4] != "  set-up under way" || lines[6] != "  no answer" || strings.Contains(text, "advice") {
			t.Errorf("%s", text)
		}
	}
	if lines, err := (frame{}).lines(80, 24); err != nil || lines[0] != "No volumes." {
		t.Errorf("%q, %v", lines, err)
	}
}

func TestTheFootSaysWhetherTheNodeLives(t *testing.T) {
	s := &screen{}
	for want, tell := range map[string]func(){
		"no podvol run-node answers":   func() { _ = s.show(nil, nodeserver.ErrNoNode) },
		"known by podvol run-node":     func() { _ = s.show(nil, nil) },
		"has not answered since 1":     func() { _ = s.show(nil, nil); s.silent(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)) },
		"does not answer yet":          func() { _ = s.show(nil, errNotYet) },
		"podvol run-node has ended":    func() { _ = s.show(nil, nil); _ = s.show(nil, nodeserver.ErrNoNode) },
		"by podvol run-node; Ctrl-C e": func() { _ = s.show(nil, nil); s.silent(time.Now()); s.silent(time.Time{}) },
	} {
		s.shown = frame{}
		if tell(); !strings.Contains(s.shown.foot(), want) {
			t.Errorf("%q, want %q", s.shown.foot(), want)
		}
	}
}

func TestPodsOfOneNameAreToldApart(t *testing.T) {
	volumes := []nodeserver.Volume{
		{Namespace: "shop", Pod: "web", PodUID: "u1", Node: "n1"}, {Namespace: "shop", Pod: "web", PodUID: "u2", Node: "n2"}, {Namespace: "shop", Pod: "web", PodUID: "u3", Node: "n2"},
		{Namespace: "shop", Pod: "api", PodUID: "u4", Node: "n1"}, {Namespace: "shop", Pod: "db", PodUID: "u5"}, {Namespace: "shop", Pod: "db", PodUID: "u6", Node: "n2"},
	}
	names := frame{all: volumes}.names()
	for uid, want := range map[string]string{"u1": "shop/web (n1)", "u2": "shop/web (u2)", "u3": "shop/web (u3)", "u4": "shop/api", "u5": "shop/db (u5)", "u6": "shop/db (n2)"} {
		if names[uid] != want {
			t.Errorf("%s is %q, want %q", uid, names[uid], want)
		}
	}
	var out, errOut bytes.Buffer
	if err := newLines("json", &out, &errOut).show(volumes[:2], nil); err != nil || !strings.Contains(out.String(), `"podUID":"u1","node":"n1"`) || strings.Count(out.String(), `"knownBy":"podvol run-node"`) != 2 {
		t.Errorf("%v: %s", err, out.String())
	}
}

// A node that stops answering is told of once, and so is that it answers again.
func TestASilentNodeIsToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began, asked, told := time.Now(), 0, []time.Duration(nil)
		listen(ctx, time.Second, func() error {
			switch asked++; asked {
			case 2, 3:
				return errors.New("no answer")
			case 5:
				cancel()
			}
			return nil
		}, func(since time.Time) {
			if since.IsZero() {
				since = began
			}
			told = append(told, since.Sub(began))
		})
		if !slices.Equal(told, []time.Duration{2 * time.Second, 0}) {
			t.Errorf("it told %v", told)
		}
	})
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
