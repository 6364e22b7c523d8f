package volumetest

import (
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume/volumetest/internal/sim"
	"github.com/podvol/podvol/volume/volumetest/internal/tree"
)

// hostilityChecks are about hostile names and links, and about secrets.
func hostilityChecks() []check {
	return []check{
		{
			name:   "hostility/names",
			proves: "A volume name or pod UID that is no name of one directory entry is refused before anything is touched.",
			each:   checkHostileNames,
		},
		{
			name:   "hostility/odd-names",
			proves: "Every name that one directory entry can have works, or is refused by NewMounter.",
			each:   checkOddNames,
		},
		{
			name:   "hostility/link-as-volume",
			proves: "A link at the place of the volume is not followed: nothing outside is changed, whether SetUp and TearDown succeed or not.",
			each:   checkLinkAsVolume,
		},
		{
			name:   "hostility/link-between-calls",
			proves: "A link that is put in the place of the volume between two calls, at whichever call, is not followed: nothing outside is changed, and no mount is left there.",
			each:   checkLinkBetweenCalls,
		},
		{
			name:   "hostility/links-inside",
			proves: "A link that a pod has made in its volume is not followed by SetUp, TearDown or GetMetrics.",
			each:   checkLinksInside,
		},
		{
			name:     "hostility/canary",
			proves:   "Secret material never reaches an error, a log, the standard output, an event, a record, a name, the text of a call or a file outside the volume, whichever call fails.",
			fakeOnly: true,
			each:     checkCanary,
		},
	}
}

// hostileNames lead elsewhere, or cannot be written down.
func hostileNames() []string {
	return []string{
		".", "..", "/", "../escape", "../../../../escape", "a/b", "a/../b", "/etc", "a\x00b", "a\nb", "a\x1b[2Jb", "\xff\xfe",
		strings.Repeat("n", 300),
	}
}

func checkHostileNames(k *kit, c Case) {
	n := k.node(c)
	source := tree.Snapshot(k, n.Dir)
	for _, name := range hostileNames() {
		n.assertNameRefused(k, name)
		n.assertUIDRefused(k, types.UID(name))
	}
	assertUntouched(k, n.Host)
	tree.AssertSame(k, "the source", source, tree.Snapshot(k, n.Dir))
}

func (n *Node) assertNameRefused(k *kit, name string) {
	k.Helper()
	spec := n.named(name)
	if _, err := n.sim.Plugin.NewMounter(spec, n.pod("a", spec)); err == nil {
		k.Errorf("NewMounter accepts the volume name %q", name)
	}
	if _, err := n.sim.Plugin.NewUnmounter(name, "uid"); err == nil {
		k.Errorf("NewUnmounter accepts the volume name %q", name)
	}
}

func (n *Node) assertUIDRefused(k *kit, uid types.UID) {
	k.Helper()
	spec := n.working.Spec(n)
	pod := n.pod("a", spec)
	pod.UID = uid
	if _, err := n.sim.Plugin.NewMounter(spec, pod); err == nil {
		k.Errorf("NewMounter accepts the pod UID %q", uid)
	}
	if _, err := n.sim.Plugin.NewUnmounter(spec.Name(), uid); err == nil {
		k.Errorf("NewUnmounter accepts the pod UID %q", uid)
	}
}

// oddNames are unusual but harmless. The last is the longest that the API
// allows.
func (n *Node) oddNames() []string {
	longest := 253 // a PersistentVolume's
	if n.working.Spec(n).Volume != nil {
		longest = 63
	}
	return []string{"-o", "--help", "...", "..data", "..x", "a b", `a\040b`, "a,b=c", "a:b", "a~b", "ä€", strings.Repeat("n", longest)}
}

func checkOddNames(k *kit, c Case) {
	for _, name := range k.node(c).oddNames() {
		n := k.node(c)
		spec := n.named(name)
		m, err := n.sim.Plugin.NewMounter(spec, n.pod("a", spec))
		if err != nil {
			assertUntouched(k, n.Host)
			continue
		}
		v := n.volumeBy(m, spec, n.pod("a", spec))
		for range 2 {
			v.MustSetUp()
			v.assertShown()
		}
		v.MustTearDown()
		v.assertGone()
		n.AssertTornDown(k)
		if k.Failed() {
			k.Fatalf("this was: the volume name %q", name)
		}
	}
}

// outside makes a directory of another owner.
func (k *kit) outside() string {
	k.Helper()
	dir := tree.New(k)
	tree.Write(k, dir, map[string]string{"precious": "data", "deep/er/file": "data"})
	if err := os.Chmod(filepath.Join(dir, "precious"), 0o600); err != nil {
		k.Fatal(err)
	}
	return dir
}

// allMounts are those of the mounter, also outside the root.
func (n *Node) allMounts(k *kit) []mount.Entry {
	k.Helper()
	mounts := table.Of(n.GetMounter())
	entries, err := mounts.All()
	if err != nil {
		k.Error(err)
	}
	return entries
}

// assertUntouchedOutside fails if anything changed in a directory of another
// owner, or is mounted there.
func (n *Node) assertUntouchedOutside(k *kit, dir string, before map[string]string) {
	k.Helper()
	for _, e := range n.allMounts(k) {
		if e.Target == dir || strings.HasPrefix(e.Target, dir+"/") {
			k.Errorf("%s %s is mounted at %s, to which a link led", e.FSType, e.Source, e.Target)
		}
	}
	tree.AssertSame(k, "a directory to which a link led", before, tree.Snapshot(k, dir))
}

func checkLinkAsVolume(k *kit, c Case) {
	n := k.node(c)
	v := n.volume("a")
	if !v.Owned() {
		return
	}
	dir := k.outside()
	before := tree.Snapshot(k, dir)
	if err := os.MkdirAll(filepath.Dir(v.GetPath()), 0o750); err != nil {
		k.Fatal(err)
	}
	if err := os.Symlink(dir, v.GetPath()); err != nil {
		k.Fatal(err)
	}
	// Either may refuse the link or take it away.
	setUpErr := v.SetUpWithDevice(k.Context())
	n.assertUntouchedOutside(k, dir, before)
	if setUpErr == nil {
		v.assertShown()
		if target, _ := os.Readlink(v.GetPath()); target == dir {
			k.Errorf("SetUp succeeds, but what the pod gets is the directory to which the link leads")
		}
	}
	tearDownErr := v.TearDownWithDevice(k.Context())
	n.assertUntouchedOutside(k, dir, before)
	k.Logf("SetUp: %v; TearDown: %v", setUpErr, tearDownErr)
	if tearDownErr == nil {
		v.assertGone()
	}
}

func checkLinkBetweenCalls(k *kit, c Case) {
	for _, op := range []operation{setUpOperation(), refreshOperation(), tearDownOperation()} {
		for _, p := range append([]sim.Point{sim.BeforeAll}, k.points(c, op)...) {
			k.bubble(func(k *kit) {
				defer k.Explain("%s, where the volume became a link at %s", op.name, p)
				n := k.node(c)
				v := n.volume("a")
				if !v.Owned() {
					return
				}
				dir := k.outside()
				before := tree.Snapshot(k, dir)
				op.prepare(v)
				aside := filepath.Join(tree.New(k), "aside")
				swap := func() { swap(v.GetPath(), aside, dir) }
				if p == sim.BeforeAll {
					swap()
				} else {
					n.sim.Disturb(p, sim.Disturbance{Hook: swap})
				}
				// Both may fail.
				_ = op.run(k.Context(), v)
				n.assertUntouchedOutside(k, dir, before)
				_ = v.TearDownWithDevice(k.Context())
				n.assertUntouchedOutside(k, dir, before)
			})
		}
	}
}

// swap puts a link to dir in the place of path, if that can be done: what is
// mounted cannot be moved on a kernel, and may not be there yet.
func swap(path, aside, dir string) {
	if info, err := os.Lstat(path); err != nil || !info.IsDir() {
		return
	}
	if err := os.Rename(path, aside); err == nil {
		_ = os.Symlink(dir, path)
	}
}

func checkLinksInside(k *kit, c Case) {
	n := k.node(c)
	v := n.volume("a")
	if !v.Owned() || v.GetAttributes().ReadOnly {
		return
	}
	dir := k.outside()
	before := tree.Snapshot(k, dir)
	v.MustSetUp()
	tree.Write(k, v.GetPath(), map[string]string{own("below/file"): "data"})
	for _, name := range []string{own("link"), own("below/link")} {
		if err := os.Symlink(dir, filepath.Join(v.GetPath(), name)); err != nil {
			k.Fatal(err)
		}
	}
	v.MustSetUp()
	_, _ = v.GetMetrics(k.Context())
	n.assertUntouchedOutside(k, dir, before)
	v.MustTearDown()
	n.AssertTornDown(k)
	n.assertUntouchedOutside(k, dir, before)
}
