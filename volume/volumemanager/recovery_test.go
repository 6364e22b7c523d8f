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
	"github.com/podvol/podvol/volume"
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
		if after[i].State != volumemanager.StateMounted || after[i].Path != before[i].Path || after[i].Source != before[i].Source {
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
					mount.Fault{Err: died, After: after, Match: func(c mount.Call) bool { return c.Op == mount.OpMount }},
					mount.Fault{Err: died, Match: func(c mount.Call) bool { return c.Op == mount.OpUnmount }}, // the dead clean nothing up
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
	rebooted := mount.NewFakeMounter()
	t.Cleanup(func() { _ = rebooted.Close() })
	want["share"] = "failed"
	if diff := cmp.Diff(want, states(rebooted.Table())); diff != "" {
		t.Errorf("after a reboot:\n%s", diff)
	}

	if rows, err := volumemanager.Inspect(filepath.Join(w.root, "missing"), w.fake.Table()); err != nil || len(rows) != 0 {
		t.Errorf("a missing root: %v, %v", rows, err)
	}
}

func TestUnreadableRecords(t *testing.T) {
	tests := map[string]struct {
		spoil func([]byte) []byte
		is    func(error) bool
	}{
		"truncated": {func(b []byte) []byte { return b[:len(b)/2] }, isDamaged},
		"empty":     {func([]byte) []byte { return nil }, isDamaged},
		"altered":   {func(b []byte) []byte { return []byte(strings.Replace(string(b), "10.0.0.1", "10.0.0.9", 1)) }, isDamaged},
		"newer": {func(b []byte) []byte { return []byte(strings.Replace(string(b), `"version":1`, `"version":9`, 1)) },
			func(err error) bool { var v *volume.RecordVersionError; return errors.As(err, &v) && v.Version == 9 }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			manager, stop := w.start()
			if _, err := manager.SetUpPod(t.Context(), newPod("web", nfsVolume("v", "10.0.0.1"))); err != nil {
				t.Fatal(err)
			}
			stop()
			file := w.records()[0]
			whole, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			spoiled := tc.spoil(whole)
			if err := os.WriteFile(file, spoiled, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err = volumemanager.Inspect(w.root, w.fake.Table())
			var damaged *volumemanager.DamagedRecordError
			if !errors.As(err, &damaged) || damaged.Path != file || !tc.is(err) {
				t.Errorf("Inspect: %v", err)
			}
			manager, _ = w.start()
			if err := manager.TearDownPod(t.Context(), "uid-web"); err != nil {
				t.Errorf("tear-down of what is not known: %v", err)
			}
			if kept, err := os.ReadFile(file); err != nil || string(kept) != string(spoiled) {
				t.Errorf("the record was touched: %v", err)
			}
			if entries, err := w.fake.Table().BySource("10.0.0.1:/nfs"); err != nil || len(entries) != 1 {
				t.Errorf("the volume was touched: %v, %v", entries, err)
			}
		})
	}
}

func isDamaged(err error) bool { return errors.Is(err, volume.ErrRecordDamaged) }

func TestRecordsArePrivate(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	if _, err := manager.SetUpPod(t.Context(), newPod("web", emptyDirVolume("v", v1.StorageMediumDefault))); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{
		filepath.Join(w.root, "podvol"):         0o700,
		filepath.Join(w.root, "podvol/lock"):    0o600,
		filepath.Join(w.root, "podvol/records"): 0o700,
		w.records()[0]:                          0o600,
	} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode().Perm(), err, want)
		}
	}
}
