package volumetest

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumetest/internal/specs"
	"github.com/podvol/podvol/volume/volumetest/internal/tree"
)

// lifecycleChecks are about SetUp and TearDown when nothing goes wrong.
func lifecycleChecks() []check {
	return []check{
		{
			name:   "lifecycle/setup",
			proves: "SetUp makes the volume appear at GetPath, whose parents it creates, with its contents, modes, owner and mount options.",
			each: func(k *kit, c Case) {
				v := k.node(c).volume("a")
				v.MustSetUp()
				v.assertShown()
			},
		},
		{
			name:   "lifecycle/setup-at-existing-directory",
			proves: "SetUp works on a directory that is there already, as after a crash, and TearDown removes it.",
			each:   checkExistingDirectory,
		},
		{
			name:   "lifecycle/setup-at",
			proves: "SetUp is SetUpAt with GetPath, and TearDown is TearDownAt with GetPath.",
			each:   checkAt,
		},
		{
			name:   "lifecycle/setup-n-times",
			proves: "SetUp is idempotent: on a volume that is set up already it succeeds, and mounts nothing a second time.",
			each:   checkSetUpTwice,
		},
		{
			name:   "lifecycle/refresh",
			proves: "Another SetUp shows what the volume's objects contain by then.",
			each:   checkRefresh,
		},
		{
			name:   "lifecycle/read-only",
			proves: "What a spec asks for read-only is called so by GetAttributes and mounted so; what is mounted read-only cannot be written to, and other volumes can.",
			each:   checkReadOnly,
		},
	}
}

// tearDownChecks are those of what TearDown leaves, and for whom.
func tearDownChecks() []check {
	return []check{
		{
			name:   "lifecycle/teardown",
			proves: "TearDown unmounts the volume and removes its directory and what the plugin keeps beside it, also what a pod wrote into a volume of its own.",
			each:   checkTearDown,
		},
		{
			name:   "lifecycle/teardown-n-times",
			proves: "TearDown is idempotent.",
			each: func(k *kit, c Case) {
				n := k.node(c)
				v := n.volume("a")
				v.MustSetUp()
				for range 3 {
					v.MustTearDown()
					v.assertGone()
				}
				n.AssertTornDown(k)
			},
		},
		{
			name:   "lifecycle/teardown-never-set-up",
			proves: "What was never set up is torn down with success, and the source stays as it is.",
			each:   checkTearDownNeverSetUp,
		},
		{
			name:   "lifecycle/setup-again",
			proves: "A volume that was torn down can be set up again.",
			each: func(k *kit, c Case) {
				n := k.node(c)
				v := n.volume("a")
				for range 3 {
					v.MustSetUp()
					v.assertShown()
					v.MustTearDown()
					v.assertGone()
				}
				n.AssertTornDown(k)
			},
		},
		{
			name:   "lifecycle/several-pods",
			proves: "Several pods have volumes of the same source at a time; each sees what it must, and the teardown of one leaves the others.",
			each:   checkSeveralPods,
		},
		{
			name:   "lifecycle/several-volumes",
			proves: "A pod has several volumes of a plugin at a time, and the teardown of one leaves the others.",
			each:   checkSeveralVolumes,
		},
		{
			name:   "lifecycle/source-kept",
			proves: "Data outside the node's own directories is never removed or changed by TearDown.",
			each:   checkSourceKept,
		},
	}
}

func checkExistingDirectory(k *kit, c Case) {
	n := k.node(c)
	v := n.volume("a")
	if v.Owned() {
		if err := os.MkdirAll(v.GetPath(), 0o750); err != nil {
			k.Fatal(err)
		}
	}
	v.MustSetUp()
	v.assertShown()
	v.MustTearDown()
	v.assertGone()
	n.AssertTornDown(k)
}

func checkAt(k *kit, c Case) {
	n := k.node(c)
	v := n.volume("a")
	v.MustStage()
	if err := v.SetUpAt(k.Context(), v.GetPath(), c.Args); err != nil {
		k.Fatalf("SetUpAt: %v", err)
	}
	v.assertShown()
	mounts := len(n.Mounts(k))
	v.MustSetUp()
	if got := len(n.Mounts(k)); got != mounts {
		k.Errorf("%d mounts after SetUp, %d after SetUpAt with the same path", got, mounts)
	}
	if err := v.Unmounter().TearDownAt(k.Context(), v.GetPath()); err != nil {
		k.Fatalf("TearDownAt: %v", err)
	}
	v.MustRelease()
	v.assertGone()
	n.AssertTornDown(k)
}

func checkSetUpTwice(k *kit, c Case) {
	n := k.node(c)
	v := n.volume("a")
	v.MustSetUp()
	mounts := len(n.Mounts(k))
	for range 3 {
		v.MustSetUp()
		v.assertShown()
		if got := len(n.Mounts(k)); got != mounts {
			k.Fatalf("%d mounts after another SetUp, %d before", got, mounts)
		}
	}
}

func checkRefresh(k *kit, c Case) {
	if c.Update == nil {
		return
	}
	n := k.node(c)
	v := n.volume("a")
	v.MustSetUp()
	v.assertShown()
	c.Update(n)
	v = v.same(n)
	v.MustSetUp()
	for _, name := range slices.Sorted(maps.Keys(c.Updated)) {
		v.assertFile(filepath.Join(v.GetPath(), name), c.Updated[name])
	}
	v.MustTearDown()
	n.AssertTornDown(k)
}

func checkReadOnly(k *kit, c Case) {
	v := k.node(c).volume("a")
	v.MustSetUp()
	entry, mounted := v.entry()
	enforced, readOnly := mounted && entry.ReadOnly(), v.GetAttributes().ReadOnly
	if wanted := specs.WantsReadOnly(v.Spec); wanted && !readOnly {
		k.Errorf("the spec asks for a read-only volume, GetAttributes says that it is not")
	} else if wanted && v.Owned() && mounted && !enforced {
		k.Errorf("the spec asks for a read-only volume, but the mount has the options %v", entry.Options)
	}
	if enforced && !readOnly {
		k.Errorf("the mount is read-only, GetAttributes says that the volume is not")
	}
	if !v.Owned() || readOnly && !enforced || enforced && k.on == onFake {
		// A path of the node's; contents that the plugin keeps up to date, which
		// containers are given read-only; the fake, which records read-only alone.
		return
	}
	err := os.WriteFile(filepath.Join(v.GetPath(), own("written")), nil, 0o600)
	if enforced != errors.Is(err, unix.EROFS) || err != nil && !enforced {
		k.Errorf("writing into a volume whose read-only is %v: %v", readOnly, err)
	}
}

func checkTearDown(k *kit, c Case) {
	n := k.node(c)
	v := n.volume("a")
	v.MustSetUp()
	if v.Owned() && !v.GetAttributes().ReadOnly {
		tree.Write(k, v.GetPath(), map[string]string{own("a/b/written-by-the-pod"): "data"})
	}
	v.MustTearDown()
	v.assertGone()
	n.AssertTornDown(k)
}

func checkTearDownNeverSetUp(k *kit, c Case) {
	n := k.node(c)
	source := tree.Snapshot(k, n.Dir)
	v := n.volume("a")
	v.MustTearDown()
	n.AssertTornDown(k)
	tree.AssertSame(k, "the source", source, tree.Snapshot(k, n.Dir))
}

func checkSeveralPods(k *kit, c Case) {
	n := k.node(c)
	a, b := n.volume("a"), n.volume("b")
	if a.Owned() && a.GetPath() == b.GetPath() {
		k.Fatalf("two pods have their volumes at the same path %s", a.GetPath())
	}
	a.MustSetUp()
	b.MustSetUp()
	a.assertShown()
	b.assertShown()
	if a.Owned() && !c.Want.ReadOnly {
		checkShared(k, a, b)
	}
	a.MustTearDown()
	a.assertGone()
	b.assertShown()
	b.MustSetUp()
	b.assertShown()
	b.MustTearDown()
	b.assertGone()
	n.AssertTornDown(k)
}

func checkShared(k *kit, a, b *podVolume) {
	k.Helper()
	tree.Write(k, a.GetPath(), map[string]string{own("written-by-a"): "data"})
	_, err := os.Stat(filepath.Join(b.GetPath(), own("written-by-a")))
	if seen := err == nil; seen != a.node.working.Shared {
		k.Errorf("another pod sees what one has written: %v (%v), the case says %v", seen, err, a.node.working.Shared)
	}
}

// checkSeveralVolumes gives a pod the same source twice, by names of which one
// begins with the other.
func checkSeveralVolumes(k *kit, c Case) {
	n := k.node(c)
	first := n.volume("a")
	spec := n.named(first.Spec.Name() + "-2")
	second := n.volumeOf(spec, n.pod("a", spec))
	for _, v := range []*podVolume{first, second} {
		v.MustSetUp()
		v.assertShown()
	}
	first.MustTearDown()
	first.assertGone()
	second.assertShown()
	second.MustTearDown()
	n.AssertTornDown(k)
}

// named returns the case's spec under another name.
func (n *Node) named(name string) *volume.Spec {
	spec := specs.Copy(n.working.Spec(n))
	if spec.Volume != nil {
		spec.Volume.Name = name
	} else {
		spec.PersistentVolume.Name = name
	}
	return spec
}

func checkSourceKept(k *kit, c Case) {
	n := k.node(c)
	v := n.volume("a")
	v.MustSetUp()
	tree.Write(k, n.Dir, map[string]string{own("kept/deep/file"): "data"})
	if err := os.Symlink("/nowhere", filepath.Join(n.Dir, own("kept/link"))); err != nil && !errors.Is(err, fs.ErrExist) {
		k.Fatal(err)
	}
	before := tree.Snapshot(k, n.Dir)
	v.MustSetUp()
	v.MustTearDown()
	v.MustTearDown()
	tree.AssertSame(k, "the source", before, tree.Snapshot(k, n.Dir))
}
