package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/examples/podvol/internal/table"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/terminal"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/volumemanager"
)

// idleManager is a manager that does nothing, for its subscriptions.
func idleManager(t *testing.T) *volumemanager.Manager {
	t.Helper()
	manager, err := volumemanager.New(volumemanager.Config{
		RootDir: "/nonexistent/root", NodeName: "n", Objects: objects.NewStore(), Plugins: plugins.All(), Mounter: fakemount.New(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return manager
}

// lockedBuffer may be read while it is written to.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func statusRow(volume string, state volumemanager.VolumeState, err error) volumemanager.VolumeStatus {
	return volumemanager.VolumeStatus{
		Pod: types.NamespacedName{Namespace: "shop", Name: "web"}, PodUID: "u", Volume: volume, State: state, Err: err,
	}
}

func TestHungVolumeHoldsNoRowBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out, errOut lockedBuffer
		r := newReport(rows.NewPrinter("table", &out, &errOut), io.Discard, volumemanager.StateMounted, []rows.Key{{Pod: "u", Volume: "first"}, {Pod: "u", Volume: "hung"}, {Pod: "u", Volume: "late"}, {Pod: "u", Volume: "last"}})
		var terminal lockedBuffer
		r.progress = &progress{terminal: &terminal}
		release := make(chan struct{})
		done := make(chan error)
		go func() {
			done <- r.run(idleManager(t), func(show func(volumemanager.VolumeStatus)) {
				show(statusRow("last", volumemanager.StateMounted, nil))
				show(statusRow("first", volumemanager.StateFailed, errors.New("one line\nanother")))
				show(statusRow("stranger", volumemanager.StateMounted, nil))
				time.Sleep(10 * time.Second)
				show(statusRow("late", volumemanager.StateMounted, nil))
				show(statusRow("late", volumemanager.StateFailed, nil))
				<-release
				show(statusRow("hung", volumemanager.StatePending, errors.New("no answer")))
			})
		}()
		printed := func() (names []string) {
			for line := range strings.Lines(out.String()) {
				if fields := strings.Fields(line); fields[0] != "POD" {
					names = append(names, fields[1]+" "+fields[2])
				}
			}
			return names
		}
		time.Sleep(printDelay + time.Millisecond)
		if got := printed(); !slices.Equal(got, []string{"first failed", "last mounted"}) {
			t.Errorf("after a second: %q", got)
		}
		if !strings.Contains(terminal.String(), "Waiting for 2 volumes (1s): hung, late") {
			t.Errorf("no progress: %q", terminal.String())
		}
		time.Sleep(10 * time.Second)
		if got := printed(); !slices.Equal(got, []string{"first failed", "last mounted", "late mounted"}) {
			t.Errorf("after eleven seconds: %q", got)
		}
		close(release)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if got := printed(); len(got) != 4 || got[3] != "hung pending" {
			t.Errorf("at the end: %q", got)
		}
		if !r.failed || !r.something {
			t.Errorf("failed %v, something %v", r.failed, r.something)
		}
		if want := "  shop/web first: one line\n    another\n"; !strings.Contains(errOut.String(), want) {
			t.Errorf("errors:\n%s", errOut.String())
		}
		if !strings.HasSuffix(terminal.String(), clearLine) {
			t.Errorf("the progress line is left: %q", terminal.String())
		}
	})
}

// Of a line that wraps only the end would be cleared.
func TestTheProgressLineFitsTheTerminal(t *testing.T) {
	typist, program := terminal.Open(t)
	defer program.Close()
	terminal.Resize(t, program, 40)
	p := newProgress(program)
	p.show([]string{"a-volume-with-a-long-name", "another-one-of-that-kind"}, 7*time.Second)
	p.clear()
	_, err := io.WriteString(program, "\n")
	must(t, err)
	line, err := bufio.NewReader(typist).ReadString('\n')
	must(t, err)
	shown, _, _ := strings.Cut(strings.TrimPrefix(line, clearLine), clearLine)
	if width := table.Width(shown); width > 39 || !strings.HasPrefix(shown, "Waiting for 2 volumes (7s): a-") || !strings.HasSuffix(shown, "kind") {
		t.Errorf("%d columns: %q", width, line)
	}
}

func TestShellJoin(t *testing.T) {
	got := shellJoin([]string{"podvol", "-f", "my pod.yaml", "it's", "", "a=b/c.d-e_f:g"})
	if want := `podvol -f 'my pod.yaml' 'it'\''s' '' a=b/c.d-e_f:g`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestProgramName(t *testing.T) {
	for arg0, want := range map[string]string{
		"/tmp/go-build123/b001/exe/podvol": "go run -C examples ./podvol",
		"/usr/local/bin/podvol":            "/usr/local/bin/podvol",
		"/opt/my tools/podvol":             "'/opt/my tools/podvol'",
	} {
		if got := shellJoin(programName(arg0)); got != want {
			t.Errorf("%s: %s, want %s", arg0, got, want)
		}
	}
}
