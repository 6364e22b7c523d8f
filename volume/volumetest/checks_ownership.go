package volumetest

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumetest/internal/tree"
)

// ownershipChecks are about a pod's fsGroup, and about what SetUp tells of how
// far it is.
func ownershipChecks() []check {
	return []check{
		{
			name:   "ownership/fsgroup",
			proves: "After SetUp with an fsGroup, all files of a volume that is Managed belong to it: it may read them and, unless the volume is read-only, write them, and directories pass it on; another SetUp leaves that so. Links are not followed.",
			each:   checkFsGroup,
		},
		{
			name:   "ownership/unmanaged",
			proves: "An fsGroup changes nothing outside the node's own directories for a volume that is not Managed.",
			each:   checkUnmanaged,
		},
		{
			name:   "ownership/progress",
			proves: "Progress is told by one goroutine at a time, and never after SetUp has returned; it says what is done in one line, Done never goes back, and where Total is known Done ends there.",
			each:   checkProgress,
		},
	}
}

// otherGroup is a group to which files are given.
const otherGroup = 4242

// groupFor returns a group to which this process can give files, best another
// than its own.
func groupFor(k *kit) int64 {
	k.Helper()
	probe := filepath.Join(tree.New(k), "probe")
	if err := os.WriteFile(probe, nil, 0o600); err != nil {
		k.Fatal(err)
	}
	if unix.Lchown(probe, -1, otherGroup) != nil {
		return int64(os.Getegid())
	}
	return otherGroup
}

// inherited makes a node and, in the volume if a pod may write there, what an
// earlier pod has left: files of its own, and links to outside.
func inherited(k *kit, c Case, outside string) *Node {
	k.Helper()
	n := k.node(c)
	v := n.volume("earlier")
	if !v.Owned() || v.GetAttributes().ReadOnly {
		return n
	}
	v.MustSetUp()
	tree.Write(k, v.GetPath(), map[string]string{own("old/private"): "data"})
	for path, mode := range map[string]fs.FileMode{own("old/private"): 0o600, own("old"): 0o700} {
		if err := os.Chmod(filepath.Join(v.GetPath(), path), mode); err != nil {
			k.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(v.GetPath(), own("old/link"))); err != nil {
		k.Fatal(err)
	}
	v.MustTearDown()
	return n
}

func checkFsGroup(k *kit, c Case) {
	if !k.node(c).volume("a").GetAttributes().Managed {
		return
	}
	outside := k.outside()
	before := tree.Snapshot(k, outside)
	c.Args.FsGroup = new(groupFor(k))
	n := inherited(k, Case{Name: c.Name, Spec: c.Spec, Prepare: c.Prepare, Pod: c.Pod}, outside)
	n.working = c
	v := n.volume("a")
	for range 2 {
		v.MustSetUp()
		v.assertOwned(k, *c.Args.FsGroup)
		n.assertUntouchedOutside(k, outside, before)
	}
	v.MustTearDown()
	n.AssertTornDown(k)
}

// assertOwned walks the volume without following links.
func (v *podVolume) assertOwned(k *kit, group int64) {
	k.Helper()
	readOnly := v.GetAttributes().ReadOnly
	// The volume's own place may be a link on the fake.
	root, err := filepath.EvalSymlinks(v.GetPath())
	if err != nil {
		k.Fatal(err)
	}
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() && !entry.Type().IsRegular() {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		want := uint32(0o060)
		switch {
		case entry.IsDir() && readOnly:
			want = 0o050
		case entry.IsDir():
			want = unix.S_ISGID | 0o070
		case readOnly:
			want = 0o040
		}
		if int64(st.Gid) != group || st.Mode&want != want {
			k.Errorf("%s belongs to group %d and has mode %o, want group %d and at least %o", path, st.Gid, st.Mode&0o7777, group, want)
		}
		return nil
	})
	if err != nil {
		k.Errorf("looking at the volume's files: %v", err)
	}
}

func checkUnmanaged(k *kit, c Case) {
	c.Args.FsGroup = new(groupFor(k))
	n := k.node(c)
	v := n.volume("a")
	if v.GetAttributes().Managed {
		return
	}
	tree.Write(k, n.Dir, map[string]string{own("private/file"): "data"})
	before := tree.Snapshot(k, n.Dir)
	v.MustSetUp()
	tree.AssertKept(k, "the source of a volume that is not Managed", before, tree.Snapshot(k, n.Dir))
}

// listener hears of progress.
type listener struct {
	k       *kit
	talking sync.Mutex
	mu      sync.Mutex
	over    bool
	last    map[string]volume.Progress
}

func (l *listener) hear(p volume.Progress) {
	if !l.talking.TryLock() {
		l.k.Errorf("two goroutines tell of progress at a time")
		return
	}
	defer l.talking.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	last, again := l.last[p.Doing]
	switch {
	case l.over:
		l.k.Errorf("after SetUp has returned, it tells of progress: %v", p)
	case p.Doing == "" || strings.ContainsAny(p.Doing, "\n\x00"):
		l.k.Errorf("progress is told in words that are no line: %q", p.Doing)
	case p.Done < 0 || p.Total < 0 || p.Total > 0 && p.Done > p.Total:
		l.k.Errorf("progress is %d of %d", p.Done, p.Total)
	case again && p.Done < last.Done:
		l.k.Errorf("progress goes back from %v to %v", last, p)
	}
	l.last[p.Doing] = p
}

func (l *listener) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	for _, p := range l.last {
		if p.Total > 0 && p.Done != p.Total {
			l.k.Errorf("SetUp has returned, but the last that it told was %v", p)
		}
	}
}

func checkProgress(k *kit, c Case) {
	c.Args.FsGroup = new(groupFor(k))
	k.bubble(func(k *kit) {
		n := inherited(k, Case{Name: c.Name, Spec: c.Spec, Prepare: c.Prepare, Pod: c.Pod}, tree.New(k))
		n.working = c
		for range 2 {
			l := &listener{k: k, last: map[string]volume.Progress{}}
			n.working.Args.Progress = l.hear
			n.volume("a").MustSetUp()
			l.end()
			// What goes on beside it may still be about to speak.
			time.Sleep(time.Hour)
			synctest.Wait()
		}
		n.volume("a").MustTearDown()
		n.AssertTornDown(k)
	})
}
