package volumemanager_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/journal"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager"
)

func cmpDiff(want, got any) string { return cmp.Diff(want, got) }

func TestRestartKnowsWhatIsMounted(t *testing.T) {
	w := newWorld(t)
	claim, pv := boundPair("nfs-211", "nfs211")
	w.add(claim, pv)
	manager, stop := w.start()
	pod := newPod("web", claimVolume("vol1", "nfs-211", false), emptyDirVolume("scratch", ""))
	if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	before := manager.Explain()
	stop()

	manager, _ = w.start()
	after := manager.Explain()
	if len(after) != 2 {
		t.Fatalf("Explain after the restart: %+v", after)
	}
	for i := range after {
		if after[i].State != volumemanager.StateMounted || after[i].Path != before[i].Path || after[i].Source != before[i].Source || after[i].NodeName != "node1" {
			t.Errorf("before %+v, after %+v", before[i], after[i])
		}
	}
	w.fake.ResetCalls()
	if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if calls := w.fake.Calls(); len(calls) > 0 {
		t.Errorf("mounted again: %v", calls)
	}
	if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
	w.assertClean()
}

// A crash drops the manager's memory between any two calls of the mounter; the
// next manager finishes either way.
func TestCrashAroundTheMount(t *testing.T) {
	for _, after := range []bool{false, true} {
		for _, finish := range []string{"set up again", "tear down"} {
			t.Run(finish+map[bool]string{true: " after the mount", false: " before the mount"}[after], func(t *testing.T) {
				w := newWorld(t)
				manager, stop := w.start()
				pod := newPod("web", nfsVolume("v", "10.0.0.1"))
				died := errors.New("the process died")
				remove := w.fake.Inject(
					fakemount.Fault{Err: died, After: after, Match: func(c fakemount.Call) bool { return c.Op == mount.OpMount }},
					fakemount.Fault{Err: died, Match: func(c fakemount.Call) bool { return c.Op == mount.OpUnmount }}, // the dead clean nothing up
				)
				_, err := manager.SetUpPod(t.Context(), pod)
				if !errors.Is(err, died) {
					t.Fatal(err)
				}
				remove()
				stop()
				if n := len(w.records()); after && n != 1 {
					t.Errorf("%d records of the volume that may be mounted", n)
				}
				manager, _ = w.start()
				if finish == "set up again" {
					if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
						t.Fatal(err)
					}
				}
				if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
					t.Fatal(err)
				}
				w.assertClean()
			})
		}
	}
}

func TestInspect(t *testing.T) {
	w := newWorld(t)
	manager, stop := w.start()
	if _, err := manager.SetUpPod(t.Context(), newPod("web", nfsVolume("share", "10.0.0.1"), emptyDirVolume("scratch", ""))); err != nil {
		t.Fatal(err)
	}
	stop()
	foreign := filepath.Join(w.root, "pods/other-uid/volumes/kubernetes.io~nfs/orphan")
	if err := os.MkdirAll(foreign, 0o750); err != nil {
		t.Fatal(err)
	}

	states := func(table mount.Table) map[string]string {
		t.Helper()
		rows, err := volumemanager.Inspect(w.root, table)
		if err != nil {
			t.Fatal(err)
		}
		states := map[string]string{}
		for _, r := range rows {
			states[r.Volume] = string(r.State)
		}
		return states
	}
	want := map[string]string{"share": "mounted", "scratch": "mounted", "orphan": "failed"}
	if diff := cmp.Diff(want, states(w.fake.Table())); diff != "" {
		t.Errorf("while mounted:\n%s", diff)
	}
	// After a reboot the mount table is empty.
	rebooted := fakemount.New()
	t.Cleanup(func() { _ = rebooted.Close() })
	want["share"] = "failed"
	if diff := cmp.Diff(want, states(rebooted.Table())); diff != "" {
		t.Errorf("after a reboot:\n%s", diff)
	}

	if rows, err := volumemanager.Inspect(filepath.Join(w.root, "missing"), w.fake.Table()); err != nil || len(rows) != 0 {
		t.Errorf("a missing root: %v, %v", rows, err)
	}
}

// A record that cannot be read stays, and so does its volume.
func TestUnreadableRecords(t *testing.T) {
	tests := map[string]struct {
		spoil func(value string) string
		is    func(error) bool
	}{
		"another's": {func(v string) string { return strings.Replace(v, "uid-web", "uid-wob", 1) }, isDamaged},
		"foreign":   {func(string) string { return `{"some":"thing"}` }, isDamaged},
		"newer": {func(v string) string { return strings.Replace(v, `"version":2`, `"version":9`, 1) },
			func(err error) bool {
				return errors.Is(err, mountrecord.ErrNewer) && strings.Contains(err.Error(), "schema version 9,")
			}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			manager, stop := w.start()
			pod := newPod("web", nfsVolume("v", "10.0.0.1"))
			if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			stop()
			spoiled := spoilRecord(t, w.recordsPath(), tc.spoil)
			_, err := volumemanager.Inspect(w.root, w.fake.Table())
			var unreadable *volumemanager.UnreadableRecordError
			if !errors.As(err, &unreadable) || unreadable.Volume != spoiled.Key || !tc.is(err) {
				t.Errorf("Inspect: %v", err)
			}
			manager, stop = w.start()
			if _, err := manager.SetUpPod(t.Context(), pod); !errors.As(err, &unreadable) || !tc.is(err) {
				t.Errorf("set-up over the record: %v", err)
			}
			if err := manager.TearDownPod(t.Context(), "uid-web"); !errors.As(err, &unreadable) || !tc.is(err) {
				t.Errorf("tear-down: %v", err)
			}
			if got := manager.Explain(); len(got) != 1 || got[0].State != volumemanager.StateFailed {
				t.Errorf("Explain = %+v", got)
			}
			stop()
			held, _, err := journal.Read(w.recordsPath())
			if err != nil || len(held) != 1 || held[0].Key != spoiled.Key || string(held[0].Value) != string(spoiled.Value) {
				t.Errorf("the record was touched: %v, %v", held, err)
			}
			if entries, err := w.fake.Table().BySource("10.0.0.1:/nfs"); err != nil || len(entries) != 1 {
				t.Errorf("the volume was touched: %v, %v", entries, err)
			}
		})
	}
}

// A damaged record goes when its volume has gone, and no sooner.
func TestDamagedRecordOfAVolumeThatIsGone(t *testing.T) {
	w := newWorld(t)
	w.leave(newPod("web", nfsVolume("v", "10.0.0.1")))
	spoilRecord(t, w.recordsPath(), func(string) string { return `{"some":"thing"}` })
	kept := []string{string(volumemanager.ProblemUnreadable) + " (not repaired)"}
	if diff := cmp.Diff(kept, w.repair(false)); diff != "" {
		t.Errorf("while it is mounted:\n%s", diff)
	}
	path := w.check(false)[0].Path
	if err := w.fake.Unmount(path); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(kept, w.repair(false)); diff != "" {
		t.Errorf("while its directory is there:\n%s", diff)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{string(volumemanager.ProblemUnreadable)}, w.repair(false)); diff != "" {
		t.Errorf("when nothing is left:\n%s", diff)
	}
	if held, _, err := journal.Read(w.recordsPath()); err != nil || len(held) != 0 {
		t.Errorf("the records are %v, %v", held, err)
	}
	w.leave(newPod("web", nfsVolume("v", "10.0.0.1")))
}

// spoilRecord changes the value of the only record.
func spoilRecord(t *testing.T, path string, spoil func(string) string) journal.Entry {
	t.Helper()
	j, held, _, err := journal.Open(path)
	if err != nil || len(held) != 1 {
		t.Fatal(err, held)
	}
	held[0].Value = []byte(spoil(string(held[0].Value)))
	if err := j.Put(held[0].Key, held[0].Value); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	return held[0]
}

func TestDamagedJournalIsKept(t *testing.T) {
	w := newWorld(t)
	manager, stop := w.start()
	if _, err := manager.SetUpPod(t.Context(), newPod("web", nfsVolume("a", "10.0.0.1"))); err != nil {
		t.Fatal(err)
	}
	if _, err := manager.SetUpPod(t.Context(), newPod("web2", nfsVolume("b", "10.0.0.1"))); err != nil {
		t.Fatal(err)
	}
	stop()
	text, err := os.ReadFile(w.recordsPath())
	if err != nil {
		t.Fatal(err)
	}
	spoiled := strings.Replace(string(text), "uid-web", "uid-wob", 1)
	if err := os.WriteFile(w.recordsPath(), []byte(spoiled), 0o600); err != nil {
		t.Fatal(err)
	}
	rows, err := volumemanager.Inspect(w.root, w.fake.Table())
	var damaged *journal.DamagedError
	if !errors.As(err, &damaged) || len(rows) != 2 {
		t.Errorf("Inspect: %v, rows %v", err, rows)
	}
	manager, _ = w.start()
	if got := manager.Explain(); len(got) != 1 || got[0].Volume != "b" {
		t.Errorf("Explain = %v", got)
	}
	kept, err := filepath.Glob(w.recordsPath() + ".damaged-*")
	if err != nil || len(kept) != 1 {
		t.Errorf("the damaged file is not kept: %v, %v", kept, err)
	}
}

func isDamaged(err error) bool { return errors.Is(err, mountrecord.ErrDamaged) }

func TestRecordsArePrivate(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	if _, err := manager.SetUpPod(t.Context(), newPod("web", emptyDirVolume("v", v1.StorageMediumDefault))); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{
		filepath.Join(w.root, "podvol"):      0o700,
		filepath.Join(w.root, "podvol/lock"): 0o600,
		w.recordsPath():                      0o600,
	} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode().Perm(), err, want)
		}
	}
}

// A start that fails leaves nothing open: its process may try again.
func TestFailedStartClosesTheRecords(t *testing.T) {
	w := newWorld(t)
	if err := os.MkdirAll(filepath.Join(w.root, "pods"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.root, "pods", "no-pod"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	config := w.config()
	config.Adopt = true
	manager, err := volumemanager.New(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := manager.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no-pod") {
		t.Errorf("Run: %v", err)
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if path, err := os.Readlink(filepath.Join("/proc/self/fd", fd.Name())); err == nil && path == w.recordsPath() {
			t.Errorf("descriptor %s of %s is still open", fd.Name(), path)
		}
	}
}
