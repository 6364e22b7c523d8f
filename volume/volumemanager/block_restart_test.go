package volumemanager_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager"
)

// The process dies before or after any step; the next one finishes either way,
// and so does the same one when it was only an error.
func TestCrashAroundABlockVolume(t *testing.T) {
	for _, step := range []string{"SetUpDevice", "MapPodDevice", "bind", "Hold", "Release", "unbind", "UnmapPodDevice", "TearDownDevice"} {
		for _, after := range []bool{false, true} {
			for _, shared := range []bool{false, true} {
				for _, finish := range []string{"set up", "tear down"} {
					for _, crash := range []bool{false, true} {
						t.Run(fmt.Sprintf("%s after=%v shared=%v then %s crash=%v", step, after, shared, finish, crash), func(t *testing.T) {
							w := newWorld(t)
							d, h := w.withBlockDisks()
							manager, stop := w.start()
							pod, other := blockPod("web", "a"), blockPod("other", "a")
							if shared {
								mustSetUp(t, manager, other)
							}
							remove := d.dies(step, after)
							_, _ = manager.SetUpPod(t.Context(), pod)
							_ = manager.TearDownPod(t.Context(), pod.UID)
							remove()
							if crash {
								stop()
								manager, _ = w.start()
							}
							if finish == "set up" {
								mustSetUp(t, manager, pod)
								w.assertMapped(d, h, "web", "a")
							}
							mustTearDown(t, manager, pod)
							if shared {
								w.assertMapped(d, h, "other", "a")
								mustTearDown(t, manager, other)
							}
							w.assertNoBlocks(d, h)
						})
					}
				}
			}
		}
	}
}

func TestBlockVolumeAfterARestart(t *testing.T) {
	w := newWorld(t)
	d, h := w.withBlockDisks()
	manager, stop := w.start()
	one, two := blockPod("one", "a"), blockPod("two", "a")
	mustSetUp(t, manager, one, two)
	stop()
	d.log()
	manager, _ = w.start()
	mustSetUp(t, manager, one)
	mustTearDown(t, manager, one)
	want := []string{"MapPodDevice uid-one", "Hold uid-one", "Release uid-one", "unbind uid-one", "UnmapPodDevice uid-one"}
	if diff := cmpDiff(want, d.log()); diff != "" {
		t.Error(diff)
	}
	w.assertMapped(d, h, "two", "a")
	mustTearDown(t, manager, two)
	w.assertNoBlocks(d, h)
}

// After a reboot the links are there, and nothing else.
func TestBlockVolumeAfterAReboot(t *testing.T) {
	for _, next := range []string{"set up", "tear down", "repair"} {
		t.Run(next, func(t *testing.T) {
			w := newWorld(t)
			d, h := w.withBlockDisks()
			manager, stop := w.start()
			pod := blockPod("web", "a")
			mustSetUp(t, manager, pod)
			stop()
			if err := w.fake.Close(); err != nil {
				t.Fatal(err)
			}
			clear(h.held)
			clear(d.ready)
			rows, err := volumemanager.Inspect(w.root, w.fake.Table())
			if err != nil || len(rows) != 1 || !errors.Is(rows[0].Err, mountrecord.ErrNotMountedAnymore) {
				t.Errorf("rows %+v, %v", rows, err)
			}
			if next == "repair" {
				if diff := cmpDiff([]string{string(volumemanager.ProblemNotMounted)}, w.repair(false)); diff != "" {
					t.Error(diff)
				}
				w.assertNoBlocks(d, h)
				return
			}
			manager, _ = w.start()
			if next == "set up" {
				mustSetUp(t, manager, pod)
				w.assertMapped(d, h, "web", "a")
			}
			mustTearDown(t, manager, pod)
			w.assertNoBlocks(d, h)
		})
	}
}

// A kubelet's block volume, or one whose record was lost, is known by its link.
func TestAdoptedBlockVolume(t *testing.T) {
	w := newWorld(t)
	d, h := w.withBlockDisks()
	manager, stop := w.start()
	stays, goes := blockPod("stays", "a"), blockPod("goes", "a")
	mustSetUp(t, manager, stays, goes)
	stop()
	if err := os.RemoveAll(filepath.Join(w.root, "podvol")); err != nil {
		t.Fatal(err)
	}
	rows, err := volumemanager.Inspect(w.root, w.fake.Table())
	if err != nil || len(rows) != 2 || !errors.Is(rows[0].Err, volumemanager.ErrNoRecord) || !strings.Contains(rows[0].Path, "/volumeDevices/") {
		t.Errorf("rows %+v, %v", rows, err)
	}
	// Without adoption its device is left alone, also when another pod goes.
	manager, stop = w.start()
	other := blockPod("other", "a")
	mustSetUp(t, manager, other)
	if err := manager.TearDownPod(t.Context(), other.UID); err == nil || !strings.Contains(err.Error(), "still bound") {
		t.Errorf("TearDownPod = %v", err)
	}
	if n := d.count("TearDownDevice pv-a"); n != 0 {
		t.Errorf("torn down %d times", n)
	}
	stop()

	config := w.config()
	config.Adopt = true
	manager, err = volumemanager.New(config)
	if err != nil {
		t.Fatal(err)
	}
	w.run(manager)
	d.log()
	mustSetUp(t, manager, stays)
	w.assertMapped(d, h, "stays", "a")
	if n := d.count("bind uid-stays"); n != 0 {
		t.Errorf("bound again")
	}
	mustTearDown(t, manager, stays, goes, other)
	w.assertNoBlocks(d, h)
}
