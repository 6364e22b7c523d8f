package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/volumemanager"
)

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
				r := newReport(kept, io.Discard, o.goal, []rows.Key{{Pod: "u", Volume: "v"}})
				err := r.run(manager, func(show func(volumemanager.VolumeStatus)) {
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
				if got := kept.rows[0]; got.State != o.row.State || got.Error != o.row.Error || r.failed != o.failed {
					t.Errorf("%s (%v), then %s (%v): row %s %q, failed %v; want %s %q, %v",
						before.State, before.Err, o.state, o.err, got.State, got.Error, r.failed, o.row.State, o.row.Error, o.failed)
				}
				if stays := o.state == mounted; stays && !r.something {
					t.Errorf("%s (%v): nobody is told how to unmount it", o.state, o.err)
				}
			}
		}
	}
}

// An edit that replaces the source of a volume, and the mounts that a reboot has
// taken, have outcomes of their own.
func TestMountTellsWhatBecameOfAnotherSource(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root, first, second := filepath.Join(t.TempDir(), "root"), t.TempDir(), t.TempDir()
		edit := func(path string) string { return manifestFile(t, pod("{name: v, hostPath: {path: "+path+"}}")) }
		mustPodvol(t, exitOK, "mount", "--node", "n", "-f", edit(first), "--root-dir", root)
		out, errOut := mustPodvol(t, exitFailed, "mount", "--node", "n", "-f", edit(second), "--root-dir", root, "-o", "json")
		if rows := rowsOf(t, out); len(rows) != 1 || rows[0].State != "failed" {
			t.Errorf("rows %+v", rows)
		}
		for _, want := range []string{first, second, "stays mounted", "tear the pod down first", "To unmount: "} {
			if !strings.Contains(errOut, want) {
				t.Errorf("stderr lacks %q:\n%s", want, errOut)
			}
		}
		mustPodvol(t, exitOK, "mount", "--node", "n", "-f", edit(first), "--root-dir", root)
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
	})
}

func TestMountAfterAReboot(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		file := manifestFile(t, pod("{name: ram, emptyDir: {medium: Memory}}, {name: disk, emptyDir: {}}"))
		out, _ := mustPodvol(t, exitOK, "mount", "-f", file, "--root-dir", root, "-o", "json")
		unmountByHand(t, rowsOf(t, out)[0].Path) // as a reboot does
		out, errOut := mustPodvol(t, exitOK, "mount", "-f", file, "--root-dir", root, "-o", "json")
		for _, r := range rowsOf(t, out) {
			if r.State != "mounted" || r.Error != "" {
				t.Errorf("row %+v\n%s", r, errOut)
			}
		}
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
		assertNothingMountedBelow(t, root)
	})
}

func unmountByHand(t *testing.T, path string) {
	t.Helper()
	if err := unix.Unmount(path, 0); err != nil {
		t.Fatal(err)
	}
}

// A volume that no container mounts has a row that says so, and is no failure;
// nothing is made for it. It is validated all the same.
func TestMountSkipsWhatNoContainerMounts(t *testing.T) {
	const idle = `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: i, volumeMounts: [{name: used, mountPath: /u}]}]
  volumes:
  - {name: used, emptyDir: {}}
  - {name: login, secret: {secretName: gone}}
  - {name: data, persistentVolumeClaim: {claimName: gone}}
  - {name: share, nfs: {server: 10.0.0.1, path: /e}}
`
	file := manifestFile(t, idle)
	out, errOut := mustPodvol(t, exitOK, "mount", "--fake", "-f", file)
	if strings.Count(out, " not used ") != 3 || strings.Count(out, "no container mounts it") != 3 || strings.Contains(errOut, "10.0.0.1") {
		t.Errorf("%s\n%s", out, errOut)
	}
	out, _ = mustPodvol(t, exitOK, "mount", "--fake", "-f", file, "-o", "json")
	rows := rowsOf(t, out)
	if len(rows) != 4 || rows[0].State != "mounted" || rows[0].Detail != "" {
		t.Fatalf("rows %+v", rows)
	}
	for _, r := range rows[1:] {
		if r.State != "not used" || r.Detail != "no container mounts it" || r.Error != "" || r.Path != "" {
			t.Errorf("row %+v", r)
		}
	}
	_, errOut = mustPodvol(t, exitUsage, "mount", "--fake", "-f", manifestFile(t, strings.Replace(idle, "server: 10.0.0.1, ", "", 1)))
	if !strings.Contains(errOut, "server") {
		t.Errorf("stderr: %s", errOut)
	}
}

// An error that came beside those that are printed already is printed, too.
func TestErrorsBesidesThePrintedOnes(t *testing.T) {
	left := errors.New("it stays behind")
	for _, tc := range []struct{ err, want error }{
		{errReported, nil},
		{errors.Join(errReported, nil), nil},
		{errors.Join(errReported, left), left},
		{errors.Join(errors.Join(errReported), left), left},
		{left, left},
	} {
		if got := besides(tc.err, errReported); fmt.Sprint(got) != fmt.Sprint(tc.want) {
			t.Errorf("besides(%q) = %v, want %v", tc.err, got, tc.want)
		}
	}
}
