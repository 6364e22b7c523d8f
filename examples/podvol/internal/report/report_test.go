package report

import (
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
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fsgroup"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/volumemanager"
)

// fakeLine keeps what a terminal shows.
type fakeLine struct {
	mu   sync.Mutex
	text string
}

func (f *fakeLine) Show(waiting []string, elapsed time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.text = ""
	if len(waiting) > 0 {
		f.text = elapsed.String() + " " + strings.Join(waiting, ", ")
	}
}

func (f *fakeLine) Clear() { f.Show(nil, 0) }

func (f *fakeLine) shown() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.text
}

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
		r := New(rows.NewPrinter("table", &out, &errOut), io.Discard, volumemanager.StateMounted, []rows.Key{{Pod: "u", Volume: "first"}, {Pod: "u", Volume: "hung"}, {Pod: "u", Volume: "late"}, {Pod: "u", Volume: "last"}})
		terminal := &fakeLine{}
		r.progress = terminal
		release := make(chan struct{})
		done := make(chan error)
		go func() {
			done <- r.Run(idleManager(t), func(show func(volumemanager.VolumeStatus)) {
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
		if !strings.Contains(terminal.shown(), "1s hung, late") {
			t.Errorf("no progress: %q", terminal.shown())
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
		if !r.Failed || !r.Something {
			t.Errorf("failed %v, something %v", r.Failed, r.Something)
		}
		if want := "  shop/web first: one line\n    another\n"; !strings.Contains(errOut.String(), want) {
			t.Errorf("errors:\n%s", errOut.String())
		}
		if terminal.shown() != "" {
			t.Errorf("the progress line is left: %q", terminal.shown())
		}
	})
}

// toldStatuses tells what a test wants told, in place of a manager.
type toldStatuses struct {
	tell func(volumemanager.VolumeStatus)
}

func (s *toldStatuses) Subscribe(f func(volumemanager.VolumeStatus)) (stop func()) {
	s.tell = f
	return func() { s.tell = nil }
}

// keptRows is a printer that keeps its rows.
type keptRows struct{ rows []rows.Row }

func (k *keptRows) Add(r ...rows.Row) error { k.rows = append(k.rows, r...); return nil }
func (k *keptRows) Close() error            { return nil }

// Whatever a volume was before, the row and the exit code tell what the call has
// come to, whether the manager tells it or the end of the wait does.
func TestRowsTellTheOutcomeOfThisCall(t *testing.T) {
	const (
		pending, mounted   = volumemanager.StatePending, volumemanager.StateMounted
		failed, detached   = volumemanager.StateFailed, volumemanager.StateDetached
		unmounted          = volumemanager.StateUnmounted
		setUp, tearDown    = "set-up", "tear-down"
		stays              = "; what was mounted before stays mounted"
		mountedElsewhere   = "is mounted from another source"
		earlier, nowFailed = "an error of before", "no answer"
	)
	befores := []volumemanager.VolumeStatus{
		statusRow("v", pending, nil), statusRow("v", pending, errors.New(earlier)),
		statusRow("v", mounted, nil), statusRow("v", mounted, errors.New(earlier)),
		statusRow("v", failed, nil), statusRow("v", failed, errors.New(earlier)),
		statusRow("v", detached, errors.New(earlier)),
	}
	outcomes := []struct {
		goal, state volumemanager.VolumeState
		ended       string
		err         error
		row         rows.Row
		failed      bool
	}{
		{mounted, mounted, setUp, nil, rows.Row{State: "mounted"}, false},
		{mounted, mounted, setUp, errors.New(mountedElsewhere), rows.Row{State: "failed", Error: mountedElsewhere + stays}, true},
		{mounted, failed, setUp, errors.New(nowFailed), rows.Row{State: "failed", Error: nowFailed}, true},
		{mounted, detached, setUp, errors.New(nowFailed), rows.Row{State: "detached", Error: nowFailed}, true},
		{mounted, pending, "", errors.New(nowFailed), rows.Row{State: "pending", Error: nowFailed}, true},
		{mounted, pending, "", nil, rows.Row{State: "pending", Error: "it is pending, not mounted"}, true},
		{unmounted, unmounted, tearDown, nil, rows.Row{State: "unmounted"}, false},
		{unmounted, unmounted, "", nil, rows.Row{State: "unmounted"}, false},
		{unmounted, failed, tearDown, errors.New(nowFailed), rows.Row{State: "failed", Error: nowFailed}, true},
		{unmounted, detached, tearDown, errors.New(nowFailed), rows.Row{State: "detached", Error: nowFailed}, true},
		{unmounted, pending, "", errors.New(nowFailed), rows.Row{State: "pending", Error: nowFailed}, true},
	}
	for _, before := range befores {
		for _, o := range outcomes {
			for _, byManager := range []bool{true, false} {
				if byManager && o.ended == "" && o.state != unmounted {
					continue // which only the end of a wait says
				}
				kept, manager := &keptRows{}, &toldStatuses{}
				r := New(kept, io.Discard, o.goal, []rows.Key{{Pod: "u", Volume: "v"}})
				err := r.Run(manager, func(show func(volumemanager.VolumeStatus)) {
					manager.tell(before)
					after := statusRow("v", o.state, o.err)
					if after.Ended = o.ended; byManager {
						manager.tell(after)
					} else {
						show(after)
					}
				})
				if err != nil || len(kept.rows) != 1 {
					t.Fatalf("%v: rows %+v", err, kept.rows)
				}
				if got := kept.rows[0]; got.State != o.row.State || got.Error != o.row.Error || r.Failed != o.failed {
					t.Errorf("%s (%v), then %s (%v): row %s %q, failed %v; want %s %q, %v",
						before.State, before.Err, o.state, o.err, got.State, got.Error, r.Failed, o.row.State, o.row.Error, o.failed)
				}
				if stays := o.state == mounted; stays && !r.Something {
					t.Errorf("%s (%v): nobody is told how to unmount it", o.state, o.err)
				}
			}
		}
	}
}

func TestTerminalShowsHowFarVolumesAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(&keptRows{}, io.Discard, volumemanager.StateMounted, []rows.Key{{Pod: "u", Volume: "data"}, {Pod: "u", Volume: "other"}})
		terminal := &fakeLine{}
		r.progress = terminal
		err := r.Run(idleManager(t), func(show func(volumemanager.VolumeStatus)) {
			v := statusRow("data", volumemanager.StatePending, nil)
			v.Progress = volume.Progress{Doing: fsgroup.Doing, Done: 3000}
			r.note(v)
			time.Sleep(printDelay + time.Millisecond)
			if want := "1s data (setting the owner of files: 3000), other"; terminal.shown() != want {
				t.Errorf("the terminal shows %q; want %q", terminal.shown(), want)
			}
		})
		if err != nil {
			t.Error(err)
		}
	})
}
