package local_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/blockdev"
	"github.com/podvol/podvol/util/removetree"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/localdisk"
	"github.com/podvol/podvol/volume/plugins/local"
	"github.com/podvol/podvol/volume/reclaim"
	"github.com/podvol/podvol/volume/volumesource"
)

// asked is a ReleaseVerifier that answers what a test says.
type asked func(n int) error

type verifier struct {
	asked
	n int
}

func (v *verifier) VerifyReleased(context.Context, *v1.PersistentVolume) error {
	v.n++
	if v.asked == nil {
		return nil
	}
	return v.asked(v.n)
}

// cleaner is a plugin on the kernel that cleans.
type cleaner struct {
	volume.DeletableVolumePlugin
	verifier *verifier
	mounter  mount.Interface
	root     string
}

func newCleaner(t *testing.T, clean local.CleanConfig, asked asked) *cleaner {
	t.Helper()
	if clean.Below == nil {
		clean.Below = []string{"/"}
	}
	c := &cleaner{verifier: &verifier{asked: asked}, mounter: host.New(host.Config{}), root: t.TempDir()}
	p := local.New(local.Config{Clean: clean})
	if err := p.Init(&volume.Host{RootDir: c.root, NodeName: "node1", Mounter: c.mounter, Releases: c.verifier}); err != nil {
		t.Fatal(err)
	}
	c.DeletableVolumePlugin, _ = volume.AsDeletable(p)
	return c
}

// releasedAt is the volume of what is at a path now.
func (c *cleaner) releasedAt(t *testing.T, path string) *v1.PersistentVolume {
	t.Helper()
	pv := spec(path).PersistentVolume
	pv.UID = "pv-uid"
	pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimDelete
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ops", Name: "data", UID: types.UID("claim-uid")}
	pv.Status.Phase = v1.VolumeReleased
	pv.Annotations = map[string]string{localdisk.Node: "node1", localdisk.VolumeID: c.idAt(t, path)}
	return pv
}

func (c *cleaner) idAt(t *testing.T, path string) string {
	t.Helper()
	device, err := blockdev.System{}.Open(path, unix.O_RDONLY)
	if err == nil {
		defer device.Close()
		return device.Names()[0]
	}
	mounts := table.Of(c.mounter)
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	_, id, err := localdisk.FileSystem(mounts, dir, blockdev.System{})
	if err != nil || id.Best() == "" {
		t.Fatalf("%v, %v", id, err)
	}
	return id.Best()
}

func (c *cleaner) delete(ctx context.Context, pv *v1.PersistentVolume) error {
	d, err := c.NewDeleter(volume.NewSpecFromPersistentVolume(pv, false))
	if err != nil {
		return err
	}
	return d.Delete(ctx)
}

// disk mounts a tmpfs and unmounts it in the end.
func (c *cleaner) disk(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	c.mount(t, "tmpfs", path, "tmpfs")
	return path
}

func (c *cleaner) mount(t *testing.T, source, path, fstype string, options ...string) {
	t.Helper()
	if err := mount.Mount(t.Context(), c.mounter, mount.Request{Source: source, Target: path, FSType: fstype, Options: options}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
}

func writeFiles(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("data"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

var deleteAll = local.CleanConfig{Action: local.CleanDelete, Devices: local.WipeSignatures}

func TestReleasedVolumesKeepTheirData(t *testing.T) {
	host := func(releases volume.ReleaseVerifier) *volume.Host {
		return &volume.Host{RootDir: t.TempDir(), NodeName: "node1", Mounter: fakemount.New(), Releases: releases}
	}
	pv := func(change func(*v1.PersistentVolume)) *volume.Spec {
		s := spec("/mnt/disks/a")
		s.PersistentVolume.UID = "pv-uid"
		s.PersistentVolume.Annotations = map[string]string{localdisk.Node: "node1", localdisk.VolumeID: "uuid:1"}
		s.PersistentVolume.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimDelete
		s.PersistentVolume.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ops", Name: "data", UID: "claim-uid"}
		change(s.PersistentVolume)
		return s
	}
	for name, tc := range map[string]struct {
		config local.CleanConfig
		change func(*v1.PersistentVolume)
		says   string
	}{
		"without configuration": {local.CleanConfig{}, func(*v1.PersistentVolume) {}, "local.Config.Clean"},
		"retained": {deleteAll, func(pv *v1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
		}, "data is kept"},
		"a volume of somebody's": {deleteAll, func(pv *v1.PersistentVolume) { delete(pv.Annotations, localdisk.VolumeID) }, localdisk.VolumeID},
		"of another node":        {deleteAll, func(pv *v1.PersistentVolume) { pv.Annotations[localdisk.Node] = "node2" }, "node2"},
		"of no node":             {deleteAll, func(pv *v1.PersistentVolume) { delete(pv.Annotations, localdisk.Node) }, "own node"},
		"never claimed":          {deleteAll, func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil }, "claim"},
		"read-only": {deleteAll, func(pv *v1.PersistentVolume) {
			pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}
		}, "reading only"},
		"relative": {deleteAll, func(pv *v1.PersistentVolume) { pv.Spec.Local.Path = "a" }, "local.path"},
	} {
		t.Run(name, func(t *testing.T) {
			p := local.New(local.Config{Clean: tc.config})
			if err := p.Init(host(&verifier{})); err != nil {
				t.Fatal(err)
			}
			able, _ := volume.AsDeletable(p)
			_, err := able.NewDeleter(pv(tc.change))
			if _, ok := errors.AsType[*volume.InvalidSpecError](err); !ok || !strings.Contains(err.Error(), tc.says) || volume.IsUncertain(err) {
				t.Errorf("err = %v, want one with %q", err, tc.says)
			}
		})
	}
	p := local.New(local.Config{Clean: deleteAll})
	if err := p.Init(host(nil)); err != nil {
		t.Fatal(err)
	}
	able, _ := volume.AsDeletable(p)
	d, err := able.NewDeleter(pv(func(*v1.PersistentVolume) {}))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := errors.AsType[*volume.MissingRoleError](d.Delete(t.Context())); !ok {
		t.Error("it deletes although nobody says that it may")
	}
	for _, bad := range []local.CleanConfig{{Action: "Shred"}, {Devices: "Shred"}} {
		if err := local.New(local.Config{Clean: bad}).Init(host(nil)); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
}

func TestKernelVolumeIsEmptied(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		c := newCleaner(t, deleteAll, nil)
		path, outside := c.disk(t), t.TempDir()
		writeFiles(t, outside, "kept", "dir/kept")
		writeFiles(t, path, "file", ".hidden", "deep/er/file", "lost+found/file")
		for link, target := range map[string]string{"out": outside, "deep/out": filepath.Join(outside, "dir"), "up": "../../..", "loop": "loop"} {
			if err := os.Symlink(target, filepath.Join(path, link)); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Mkfifo(filepath.Join(path, "pipe"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(path, "deep"), 0); err != nil {
			t.Fatal(err)
		}
		dry := newCleaner(t, local.CleanConfig{Action: local.CleanDryRun}, nil)
		pv := c.releasedAt(t, path)
		if e, ok := errors.AsType[*reclaim.DryRunError](dry.delete(t.Context(), pv)); !ok || e.Entries == 0 || !strings.Contains(e.Source, path) {
			t.Errorf("the dry run says %+v", e)
		}
		if len(namesIn(t, path)) != 8 {
			t.Errorf("after a dry run there is %v", namesIn(t, path))
		}
		for range 2 { // again is success
			if err := c.delete(t.Context(), pv); err != nil {
				t.Fatal(err)
			}
		}
		if left := namesIn(t, path); len(left) > 0 { // lost+found is ext4's
			t.Errorf("%v is left", left)
		}
		if _, err := os.Stat(filepath.Join(outside, "dir/kept")); err != nil || len(namesIn(t, outside)) != 2 {
			t.Errorf("outside: %v, %v", namesIn(t, outside), err)
		}
	})
}

// What may not be emptied stays whole.
func TestKernelVolumeIsKept(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		errStop := errors.New("somebody uses it")
		for name, tc := range map[string]struct {
			asked   asked
			prepare func(t *testing.T, c *cleaner, path string)
			want    func(error) bool
		}{
			"in use": {asked: func(int) error { return errStop }, want: func(err error) bool { return errors.Is(err, errStop) }},
			"in use by the time of the deletion": {
				asked: func(n int) error { return map[bool]error{n > 1: errStop}[true] },
				want:  func(err error) bool { return errors.Is(err, errStop) },
			},
			"another disk": {
				prepare: func(t *testing.T, c *cleaner, path string) {
					c.mount(t, "tmpfs", path, "tmpfs")
					writeFiles(t, path, "file", "dir/file")
				},
				want: func(err error) bool {
					e, ok := errors.AsType[*localdisk.OtherDiskError](err)
					return ok && e.Found != "" && e.Found != e.Want
				},
			},
			"a mount in it": {
				prepare: func(t *testing.T, c *cleaner, path string) { c.mount(t, "tmpfs", filepath.Join(path, "dir"), "tmpfs") },
				want: func(err error) bool {
					_, ok := errors.AsType[*removetree.MountError](err)
					return ok
				},
			},
			"a bind in it": {
				prepare: func(t *testing.T, c *cleaner, path string) {
					c.mount(t, t.TempDir(), filepath.Join(path, "dir"), "", "bind")
				},
				want: func(err error) bool {
					_, ok := errors.AsType[*removetree.MountError](err)
					return ok
				},
			},
			"mounted for a pod": {
				prepare: func(t *testing.T, c *cleaner, path string) { c.mount(t, path, t.TempDir(), "", "bind") },
				want:    func(err error) bool { return errors.Is(err, volume.ErrInUse) },
			},
			"a directory mounted for a pod": {
				prepare: func(t *testing.T, c *cleaner, path string) {
					c.mount(t, filepath.Join(path, "dir"), t.TempDir(), "", "bind")
				},
				want: func(err error) bool { return errors.Is(err, volume.ErrInUse) },
			},
			"read-only": {
				prepare: func(t *testing.T, c *cleaner, path string) { c.mount(t, path, path, "", "bind", "ro") },
				want:    func(err error) bool { return err != nil },
			},
		} {
			t.Run(name, func(t *testing.T) {
				c := newCleaner(t, deleteAll, tc.asked)
				path := c.disk(t)
				writeFiles(t, path, "file", "dir/file")
				pv := c.releasedAt(t, path)
				if tc.prepare != nil {
					tc.prepare(t, c, path)
				}
				if err := c.delete(t.Context(), pv); err == nil || !tc.want(err) || volume.IsUncertain(err) {
					t.Errorf("err = %v, uncertain: %v", err, volume.IsUncertain(err))
				}
				if data, err := os.ReadFile(filepath.Join(path, "file")); string(data) != "data" {
					t.Errorf("the file holds %q, %v", data, err)
				}
			})
		}
		// Where the disk is not, the directory below is not touched.
		c := newCleaner(t, deleteAll, nil)
		path := c.disk(t)
		pv := c.releasedAt(t, path)
		if err := unix.Unmount(path, 0); err != nil {
			t.Fatal(err)
		}
		writeFiles(t, path, "below")
		if _, ok := errors.AsType[*localdisk.OtherDiskError](c.delete(t.Context(), pv)); !ok || len(namesIn(t, path)) != 1 {
			t.Errorf("without its disk: %v", namesIn(t, path))
		}
		link := filepath.Join(t.TempDir(), "link")
		elsewhere := c.disk(t)
		writeFiles(t, elsewhere, "file")
		if err := os.Symlink(elsewhere, link); err != nil {
			t.Fatal(err)
		}
		if _, ok := errors.AsType[*localdisk.OtherDiskError](c.delete(t.Context(), c.releasedAt(t, link))); !ok || len(namesIn(t, elsewhere)) != 1 {
			t.Errorf("behind a link: %v", namesIn(t, elsewhere))
		}
	})
}

// A mount that appears while the volume is being emptied is not crossed; what is
// interrupted goes on later.
func TestKernelMountThatAppearsMeanwhile(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		var path string
		appear := true
		c := newCleaner(t, deleteAll, func(n int) error {
			if n == 2 && appear { // right before the first removal
				return unix.Mount("tmpfs", filepath.Join(path, "dir"), "tmpfs", 0, "")
			}
			return nil
		})
		path = c.disk(t)
		writeFiles(t, path, "file", "dir/file")
		pv := c.releasedAt(t, path)
		err := c.delete(t.Context(), pv)
		if e, ok := errors.AsType[*removetree.MountError](err); !ok || e.Path != filepath.Join(path, "dir") || !volume.IsUncertain(err) {
			t.Fatalf("err = %v", err)
		}
		if err := unix.Unmount(filepath.Join(path, "dir"), 0); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(path, "dir/file")); err != nil {
			t.Errorf("what the mount hid: %v", err)
		}
		appear = false
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.delete(ctx, pv); err == nil {
			t.Error("it goes on although its context has ended")
		}
		if err := c.delete(t.Context(), pv); err != nil || len(namesIn(t, path)) > 0 {
			t.Errorf("another try: %v, %v left", err, namesIn(t, path))
		}
	})
}

func TestKernelManyFiles(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		c := newCleaner(t, deleteAll, nil)
		path := c.disk(t)
		files := 100_000
		if testtool.Shortened() { // in an emulated machine
			files = 2_000
		}
		for n := range files {
			dir := filepath.Join(path, fmt.Sprint(n%100))
			if n < 100 {
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := unix.Mknod(filepath.Join(dir, fmt.Sprint(n)), unix.S_IFREG|0o600, 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.delete(t.Context(), c.releasedAt(t, path)); err != nil || len(namesIn(t, path)) > 0 {
			t.Errorf("%v, %d left", err, len(namesIn(t, path)))
		}
	})
}

func TestSharesData(t *testing.T) {
	p := local.New(local.Config{})
	at := func(path, node, id string, hosts ...string) *volume.Spec {
		s := spec(path)
		s.PersistentVolume.Annotations = map[string]string{localdisk.Node: node, localdisk.VolumeID: id}
		if len(hosts) > 0 {
			s.PersistentVolume.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: hosts}}}}}}
		}
		return s
	}
	for name, tc := range map[string]struct {
		a, b *volume.Spec
		want bool
	}{
		"the same path":             {at("/d/a", "", ""), at("/d/a/", "", ""), true},
		"one in the other":          {at("/d/a", "", ""), at("/d/a/b", "", ""), true},
		"the other in the one":      {at("/d/a/b", "n", ""), at("/d/a", "", ""), true},
		"others":                    {at("/d/a", "", ""), at("/d/ab", "", ""), false},
		"another node":              {at("/d/a", "n1", ""), at("/d/a", "n2", ""), false},
		"another host":              {at("/d/a", "", "", "n1", "n3"), at("/d/a", "", "", "n2"), false},
		"a host that both have":     {at("/d/a", "", "", "n1", "n2"), at("/d/a", "", "", "n2"), true},
		"a host and any":            {at("/d/a", "", "", "n1"), at("/d/a", "", ""), true},
		"another disk in its place": {at("/d/a", "n", "uuid:1"), at("/d/a", "n", "uuid:2"), false},
		"the same disk":             {at("/d/a", "n", "uuid:1"), at("/d/a", "n", "uuid:1"), true},
	} {
		for range 2 {
			if got, err := volumesource.SharesData(p, tc.a, tc.b); err != nil || got != tc.want {
				t.Errorf("%s: %v, %v, want %v", name, got, err, tc.want)
			}
			tc.a, tc.b = tc.b, tc.a
		}
	}
	for _, odd := range []string{"a", "/d/../d/a", "/x/../d", "d/a/b", "../d/a", ""} {
		for _, specs := range [][2]*volume.Spec{{at(odd, "", ""), at("/d/a", "", "")}, {at("/d/a", "", ""), at(odd, "", "")}} {
			if got, err := volumesource.SharesData(p, specs[0], specs[1]); (err == nil) != (odd == "a") || got {
				t.Errorf("%q: %v, %v", odd, got, err)
			}
		}
	}
}

// An administrator says where volumes are cleaned; a PersistentVolume, which may
// be anybody's, does not.
func TestKernelOnlyWhatIsBelowIsCleaned(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for name, at := range map[string]struct {
			below   func(path string) []string
			cleaned bool
		}{
			"nowhere":       {func(string) []string { return []string{} }, false},
			"elsewhere":     {func(string) []string { return []string{t.TempDir()} }, false},
			"the very path": {func(path string) []string { return []string{path} }, false},
			"name's prefix": {func(path string) []string { return []string{strings.TrimSuffix(path, "k")} }, false},
			"below":         {func(path string) []string { return []string{filepath.Dir(path)} }, true},
			"through a link": {func(path string) []string {
				link := filepath.Join(t.TempDir(), "link")
				if err := os.Symlink(filepath.Dir(path), link); err != nil {
					t.Fatal(err)
				}
				return []string{link}
			}, true},
		} {
			clean, path := deleteAll, newCleaner(t, deleteAll, nil).disk(t)
			clean.Below = at.below(path)
			c := newCleaner(t, clean, nil)
			writeFiles(t, path, "thesis")
			err := c.delete(t.Context(), c.releasedAt(t, path))
			if left := len(namesIn(t, path)) > 0; left == at.cleaned || (err == nil) != at.cleaned {
				t.Errorf("%s: left %v, %v", name, left, err)
			}
			if _, refused := errors.AsType[*volume.InvalidSpecError](err); refused == at.cleaned {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
