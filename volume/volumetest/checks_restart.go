package volumetest

import (
	"os"

	"github.com/google/go-cmp/cmp"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumetest/internal/sim"
)

// restartChecks are about an agent that was started again while volumes are
// set up.
func restartChecks() []check {
	return []check{
		{
			name:   "restart/from-record",
			proves: "After a restart, another instance goes on with the spec from the volume's record: SetUp finds the volume as it is, TearDown removes it.",
			each:   checkFromRecord,
		},
		{
			name:   "restart/reconstructed",
			proves: "Without a record, ConstructVolumeSpec rebuilds from name, directory and mount table a spec that suffices to tear the volume down.",
			each:   checkReconstructed,
		},
		{
			name:   "restart/complete",
			proves: "A rebuilt spec that is called complete equals the original, and mounts the same volume again: it has the same volume name, SetUp finds the volume as it is, and after TearDown SetUp asks the same of mounter and roles.",
			each:   checkComplete,
		},
		{
			name:   "restart/nothing-left",
			proves: "ConstructVolumeSpec of a volume of which an empty directory or nothing is left is not called complete unless nothing was guessed, and tearing it down succeeds.",
			each:   checkNothingLeft,
		},
		{
			name:   "restart/rebooted",
			proves: "After a reboot, which takes all mounts and leaves directories and files, SetUp makes the volume appear again and TearDown leaves nothing.",
			each:   checkRebooted,
		},
	}
}

func checkFromRecord(k *kit, c Case) {
	n := k.node(c)
	v := n.volume("a")
	v.MustSetUp()
	record := v.Record()
	if diff := cmp.Diff(v.Spec, record.Spec()); diff != "" {
		k.Errorf("the spec does not survive being recorded (-before +after):\n%s", diff)
	}
	mounts := len(n.Mounts(k))
	again := n.restart()
	w := again.volumeOf(record.Spec(), v.Pod)
	if w.GetPath() != v.GetPath() {
		k.Errorf("after the restart GetPath() is %s, before it was %s", w.GetPath(), v.GetPath())
	}
	w.MustSetUp()
	w.assertShown()
	if got := len(n.Mounts(k)); got != mounts {
		k.Errorf("%d mounts after the restart, %d before", got, mounts)
	}
	last := again.restart()
	last.volumeOf(record.Spec(), v.Pod).MustTearDown()
	w.assertGone()
	last.AssertTornDown(k)
}

// reconstruct rebuilds the volume's spec by a new instance of the plugin.
func (v *podVolume) reconstruct(k *kit, n *Node) volume.ReconstructedVolume {
	k.Helper()
	rebuilt, err := n.sim.Plugin.ConstructVolumeSpec(k.Context(), v.Spec.Name(), v.GetPath())
	if err != nil {
		k.Fatalf("ConstructVolumeSpec: %v", err)
	}
	if rebuilt.Spec == nil {
		k.Fatalf("ConstructVolumeSpec returns neither spec nor error")
	}
	if got := rebuilt.Spec.Name(); got != v.Spec.Name() {
		k.Errorf("the rebuilt spec is named %q, want %q", got, v.Spec.Name())
	}
	if !n.sim.Plugin.CanSupport(rebuilt.Spec) {
		k.Errorf("the plugin does not support the spec that it rebuilt: %+v", rebuilt.Spec)
	}
	return rebuilt
}

func checkReconstructed(k *kit, c Case) {
	n := k.node(c)
	v := n.volume("a")
	v.MustSetUp()
	again := n.restart()
	before := len(sim.MounterCalls(again.Host))
	rebuilt := v.reconstruct(k, again)
	if got := len(sim.MounterCalls(again.Host)); got != before {
		k.Errorf("ConstructVolumeSpec mounts or unmounts: %v", sim.MounterCalls(again.Host)[before:])
	}
	v.assertShown()
	if !rebuilt.Complete {
		// A failure shows it, and -v.
		k.Logf("fields that the record alone keeps (-original +rebuilt):\n%s", cmp.Diff(v.Spec, rebuilt.Spec))
	}
	u, err := again.sim.Plugin.NewUnmounter(rebuilt.Spec.Name(), v.Pod.UID)
	if err != nil {
		k.Fatalf("NewUnmounter: %v", err)
	}
	if err := u.TearDown(k.Context()); err != nil {
		k.Fatalf("TearDown of a rebuilt volume: %v", err)
	}
	v.same(again).MustRelease()
	v.assertGone()
	again.AssertTornDown(k)
}

func checkComplete(k *kit, c Case) {
	n := k.node(c)
	v := n.volume("a")
	calls := n.sim.CallsOf(v.MustSetUp)
	mounts := len(n.Mounts(k))
	again := n.restart()
	rebuilt := v.reconstruct(k, again)
	if !rebuilt.Complete {
		return
	}
	v.assertSameName(k, again, rebuilt.Spec)
	k.assertEqualSpecs(v.Spec, rebuilt.Spec)
	w := again.volumeOf(rebuilt.Spec, v.Pod)
	if got, want := w.GetAttributes(), v.GetAttributes(); got != want {
		k.Errorf("the attributes of the rebuilt volume are %+v, want %+v", got, want)
	}
	w.MustSetUp()
	w.assertShown()
	if got := len(n.Mounts(k)); got != mounts {
		k.Errorf("%d mounts after SetUp with the rebuilt spec, %d before", got, mounts)
	}
	w.MustTearDown()
	if diff := cmp.Diff(calls, again.sim.CallsOf(w.MustSetUp)); diff != "" {
		k.Errorf("SetUp by the rebuilt spec calls the mounter and roles otherwise (-original +rebuilt):\n%s", diff)
	}
	w.assertShown()
}

// assertEqualSpecs compares a rebuilt spec that is called complete. One of the
// other form, inline or persistent, can be told only by what it does.
func (k *kit) assertEqualSpecs(original, rebuilt *volume.Spec) {
	k.Helper()
	if equal := k.runner.suite.Equal; equal != nil {
		if !equal(original, rebuilt) {
			k.Errorf("the rebuilt spec is called complete, but is not Equal (-original +rebuilt):\n%s", cmp.Diff(original, rebuilt))
		}
		return
	}
	var diff string
	switch {
	case original.Volume != nil && rebuilt.Volume != nil:
		diff = cmp.Diff(original.Volume.VolumeSource, rebuilt.Volume.VolumeSource)
	case original.PersistentVolume != nil && rebuilt.PersistentVolume != nil:
		a, b := original.PersistentVolume.Spec, rebuilt.PersistentVolume.Spec
		diff = cmp.Diff(a.PersistentVolumeSource, b.PersistentVolumeSource) + cmp.Diff(a.MountOptions, b.MountOptions) +
			cmp.Diff(original.ReadOnly, rebuilt.ReadOnly)
	}
	if diff != "" {
		k.Errorf("the rebuilt spec is called complete, but differs (-original +rebuilt):\n%s", diff)
	}
}

func (v *podVolume) assertSameName(k *kit, n *Node, rebuilt *volume.Spec) {
	k.Helper()
	want, err := n.sim.Plugin.GetVolumeName(v.Spec)
	if err != nil {
		k.Fatal(err)
	}
	if got, err := n.sim.Plugin.GetVolumeName(rebuilt); err != nil || got != want {
		k.Errorf("the rebuilt spec is called complete, but its volume name is %q (%v), want %q", got, err, want)
	}
}

func checkNothingLeft(k *kit, c Case) {
	for _, directory := range []bool{false, true} {
		n := k.node(c)
		v := n.volume("a")
		if directory && v.Owned() {
			if err := os.MkdirAll(v.GetPath(), 0o750); err != nil {
				k.Fatal(err)
			}
		}
		rebuilt := v.reconstruct(k, n)
		if rebuilt.Complete {
			v.assertSameName(k, n, rebuilt.Spec)
		}
		v.MustTearDown()
		v.assertGone()
		n.AssertTornDown(k)
	}
}

func checkRebooted(k *kit, c Case) {
	for _, setUp := range []bool{true, false} {
		n := k.node(c)
		v := n.volume("a")
		v.MustSetUp()
		n.sim.Reboot()
		w := v.same(n.restart())
		if setUp {
			w.MustSetUp()
			w.assertShown()
		}
		w.MustTearDown()
		w.assertGone()
		n.AssertTornDown(k)
	}
}
