package hostpath_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/hostpath"
	"github.com/podvol/podvol/volume/reclaim"
	"github.com/podvol/podvol/volume/recyclerpod"
	"github.com/podvol/podvol/volume/volumesource"
)

// releasedAt is a volume that its claim has left.
func releasedAt(path string) *v1.PersistentVolume {
	pv := persistent(path).PersistentVolume
	pv.UID = "uid-of-pv1"
	pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRecycle
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ns", Name: "data", UID: "uid-data"}
	pv.Status.Phase = v1.VolumeReleased
	return pv
}

func recycle(t *testing.T, p volume.VolumePlugin, pv *v1.PersistentVolume) (events []string, err error) {
	t.Helper()
	able, ok := volume.AsRecyclable(p)
	if !ok {
		t.Fatal("the plugin does not recycle")
	}
	err = able.Recycle(t.Context(), pv.Name, volume.NewSpecFromPersistentVolume(pv, false), func(_, message string) { events = append(events, message) })
	return events, err
}

// used makes a directory with a claim's data.
func used(t *testing.T, dir string) string {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "deep"), 0o755), os.WriteFile(filepath.Join(dir, "deep", "file"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func has(t *testing.T, dir string) bool {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries) > 0
}

func TestRecycleOnlySaysWhatItWouldDelete(t *testing.T) {
	base := t.TempDir()
	dir := used(t, filepath.Join(base, "pv1"))
	p, _ := configured(t, hostpath.Config{Recycle: hostpath.RecycleConfig{Below: []string{base}}})
	events, err := recycle(t, p, releasedAt(dir))
	dry, ok := errors.AsType[*reclaim.DryRunError](err)
	if !ok || dry.Entries != 2 || volume.IsUncertain(err) || !has(t, dir) {
		t.Errorf("err = %v, %+v", err, dry)
	}
	if len(events) != 1 || !strings.Contains(events[0], dir) {
		t.Errorf("events %q", events)
	}
}

func TestRecycleArchives(t *testing.T) {
	base := t.TempDir()
	dir := used(t, filepath.Join(base, "volumes", "pv1"))
	archive := filepath.Join(base, "archive")
	config := hostpath.RecycleConfig{Below: []string{filepath.Join(base, "volumes")}, Action: hostpath.RecycleArchive, Archive: archive}
	p, _ := configured(t, hostpath.Config{Recycle: config})
	pv := releasedAt(dir)
	for range 2 { // the second finds it empty
		if _, err := recycle(t, p, pv); err != nil || has(t, dir) {
			t.Fatalf("err = %v", err)
		}
	}
	if _, err := os.Stat(filepath.Join(archive, "pv1-"+recyclerpod.ReleaseID(pv), "deep", "file")); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(archive, 0o777); err != nil {
		t.Fatal(err)
	}
	_, err := recycle(t, p, pv)
	wantError(t, "an archive for everybody", err, "chmod go-w")
	config.Archive = filepath.Join(dir, "archive")
	p, _ = configured(t, hostpath.Config{Recycle: config})
	_, err = recycle(t, p, pv)
	wantError(t, "an archive in the volume", err, "within one another")
}

func TestNothingElseOfTheNodeIsEmptied(t *testing.T) {
	base := t.TempDir()
	volumes := filepath.Join(base, "volumes")
	outside := used(t, filepath.Join(base, "outside"))
	dir := used(t, filepath.Join(volumes, "pv1"))
	if err := os.Symlink(outside, filepath.Join(volumes, "link")); err != nil {
		t.Fatal(err)
	}
	shared := used(t, filepath.Join(volumes, "shared"))
	if err := os.Mkdir(filepath.Join(shared, "deep", ".podvol"), 0o700); err != nil {
		t.Fatal(err)
	}
	config := hostpath.Config{Recycle: hostpath.RecycleConfig{Below: []string{volumes}, Action: hostpath.RecycleDelete}}
	p, h := configured(t, config)
	elsewhere := releasedAt(dir)
	elsewhere.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{"other"}}}}}}}
	kept := releasedAt(dir)
	kept.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
	readOnly := releasedAt(dir)
	readOnly.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}
	unclaimed := releasedAt(dir)
	unclaimed.Spec.ClaimRef = nil
	for name, tc := range map[string]struct {
		pv   *v1.PersistentVolume
		want string
	}{
		"outside":           {releasedAt(outside), "not strictly below"},
		"the directory":     {releasedAt(volumes), "not strictly below"},
		"the node":          {releasedAt("/"), "hostPath.path"},
		"this node's pods":  {releasedAt(h.RootDir), "hostPath.path"},
		"a link to outside": {releasedAt(filepath.Join(volumes, "link")), "not strictly below"},
		"by dots":           {releasedAt(volumes + "/../outside"), "hostPath.path"},
		"provisioned below": {releasedAt(shared), ".podvol"},
		"a file":            {releasedAt(filepath.Join(dir, "deep", "file")), "not a directory"},
		"nothing there":     {releasedAt(filepath.Join(volumes, "none")), "no such file"},
		"another node's":    {elsewhere, "nodeAffinity"},
		"to be retained":    {kept, "persistentVolumeReclaimPolicy"},
		"read-only":         {readOnly, "accessModes"},
		"nobody's":          {unclaimed, "claimRef"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := recycle(t, p, tc.pv)
			wantError(t, "Recycle", err, tc.want)
			if volume.IsUncertain(err) {
				t.Errorf("it leaves open whether something was done: %v", err)
			}
			for _, dir := range []string{outside, dir, shared} {
				if !has(t, filepath.Join(dir, "deep")) {
					t.Errorf("%s was emptied", dir)
				}
			}
		})
	}
	if _, err := recycle(t, p, releasedAt(dir)); err != nil || has(t, dir) {
		t.Errorf("the volume itself: %v", err)
	}
}

// lateRefuser changes its mind.
type lateRefuser struct{ asked *int }

var errStillUsed = errors.New("a pod uses it")

func (r lateRefuser) VerifyReleased(context.Context, *v1.PersistentVolume) error {
	if *r.asked++; *r.asked > 1 {
		return errStillUsed
	}
	return nil
}

func TestWhoUsesTheVolumeIsAskedAgainRightBefore(t *testing.T) {
	base := t.TempDir()
	dir := used(t, filepath.Join(base, "pv1"))
	p, h := configured(t, hostpath.Config{
		Provision: hostpath.ProvisionConfig{Bases: []hostpath.Base{{Path: filepath.Join(base)}}},
		Recycle:   hostpath.RecycleConfig{Below: []string{base}, Action: hostpath.RecycleDelete},
	})
	made := mustProvision(t, p, claimOf("data"))
	for name, reclaim := range map[string]func() error{
		"Recycle": func() error { _, err := recycle(t, p, releasedAt(dir)); return err },
		"Delete":  func() error { return remove(t, p, made) },
	} {
		h.Releases = lateRefuser{new(int)}
		if err := reclaim(); !errors.Is(err, errStillUsed) {
			t.Errorf("%s = %v", name, err)
		}
	}
	if _, err := os.Stat(made.Spec.HostPath.Path); err != nil || !has(t, dir) {
		t.Errorf("the data is gone: %v", err)
	}
}

func TestKernelVolumeWithAMountedSubPathIsKept(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		h := fakehost.New(t)
		h.Mounter = host.New(host.Config{})
		base := filepath.Join(t.TempDir(), "base")
		sub := filepath.Join(t.TempDir(), "another-root", "pods", "u1", "volume-subpaths", "pvc-uid-data", "web", "0")
		if err := errors.Join(os.MkdirAll(sub, 0o755), os.Mkdir(base, 0o755)); err != nil {
			t.Fatal(err)
		}
		p := hostpath.New(hostpath.Config{
			Provision: hostpath.ProvisionConfig{Bases: []hostpath.Base{{Path: base}}},
			Recycle:   hostpath.RecycleConfig{Below: []string{base}, Action: hostpath.RecycleDelete},
		})
		if err := p.Init(h); err != nil {
			t.Fatal(err)
		}
		pv := mustProvision(t, p, claimOf("data"))
		static := releasedAt(used(t, filepath.Join(base, "static")))
		for dir, reclaim := range map[string]func() error{
			used(t, filepath.Join(pv.Spec.HostPath.Path, "sub")): func() error { return remove(t, p, pv) },
			static.Spec.HostPath.Path:                            func() error { _, err := recycle(t, p, static); return err },
		} {
			if err := unix.Mount(dir, sub, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
			err := reclaim()
			if mounted, ok := errors.AsType[*volume.Failure](err); !ok || mounted.Cause != volume.ErrInUse || mounted.Subject != sub || !has(t, dir) {
				t.Errorf("with %s mounted for a pod: %v", dir, err)
			}
			if err := unix.Unmount(sub, 0); err != nil {
				t.Fatal(err)
			}
		}
		inside := filepath.Join(pv.Spec.HostPath.Path, "disk")
		if err := os.Mkdir(inside, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("disk", inside, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		used(t, filepath.Join(inside, "data"))
		err := remove(t, p, pv)
		disks, _ := filepath.Glob(filepath.Join(base, ".podvol", "trash", "*", "disk"))
		if err == nil || len(disks) != 1 || !has(t, filepath.Join(disks[0], "data", "deep")) {
			t.Fatalf("what is mounted in the volume: %v, %v", disks, err)
		}
		if err := unix.Unmount(disks[0], 0); err != nil {
			t.Fatal(err)
		}
		if err := remove(t, p, pv); err != nil {
			t.Error(err)
		}
		if _, err := recycle(t, p, static); err != nil {
			t.Error(err)
		}
	})
}

func TestSharesData(t *testing.T) {
	p, _ := configured(t, hostpath.Config{})
	pod := func(path string) *volume.Spec { return inline(path, v1.HostPathUnset) }
	for name, tc := range map[string]struct {
		a, b *volume.Spec
		want bool
	}{
		"the same":                  {persistent("/data/pv1"), pod("/data/pv1/"), true},
		"a directory of it":         {persistent("/data/pv1"), pod("/data/pv1/logs"), true},
		"a sibling":                 {persistent("/data/pv1"), pod("/data/pv10"), false},
		"a pod sees the whole node": {persistent("/data/pv1"), pod("/"), false},
		"a volume around it":        {persistent("/data/pv1"), persistent("/data"), true},
		"a volume in it":            {persistent("/data"), persistent("/data/pv1"), true},
	} {
		for _, pair := range [][2]*volume.Spec{{tc.a, tc.b}, {tc.b, tc.a}} {
			if got, err := volumesource.SharesData(p, pair[0], pair[1]); err != nil || got != tc.want {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		}
	}
}
