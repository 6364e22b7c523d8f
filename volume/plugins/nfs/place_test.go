package nfs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
)

// behindLink moves the host's root directory behind a link.
func behindLink(t *testing.T, p *plugin) {
	t.Helper()
	host := p.Host.(*volume.Host)
	real := host.RootDir
	host.RootDir = filepath.Join(t.TempDir(), "root")
	if err := os.Symlink(real, host.RootDir); err != nil {
		t.Fatal(err)
	}
}

func mountAt(t *testing.T, fake *fakemount.Mounter, source, dir string, options ...string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(dir, 0o750), fake.Mount(source, dir, "nfs", options)); err != nil {
		t.Fatal(err)
	}
}

func TestMountedVolumeIsNotEmptiedWhereTheRootDirectoryIsBehindALink(t *testing.T) {
	for name, source := range map[string]string{"its name": "10.0.0.1:/export/d", "another name": "nas:/export/d"} {
		t.Run(name, func(t *testing.T) {
			p, fake, served, _ := newEmbedded(t, deleting())
			write(t, served, "d/kept")
			behindLink(t, p)
			dir := p.Host.GetPodVolumeDir("u1", PluginName, "other")
			mountAt(t, fake, source, dir, "addr=10.0.0.1")
			spec := releasedSpec(func(pv *v1.PersistentVolume) { pv.Spec.MountOptions = []string{"addr=10.0.0.1"} })
			_, err := recycle(t, p, spec)
			if e, ok := errors.AsType[*volume.Failure](err); !ok || e.Cause != volume.ErrInUse || !strings.HasPrefix(e.What, source+" is") || volume.IsUncertain(err) {
				t.Errorf("Recycle = %v", err)
			}
			wantFiles(t, served, "d/kept")
			if err := fake.Unmount(dir); err != nil {
				t.Fatal(err)
			}
			if _, err := recycle(t, p, spec); err != nil {
				t.Error(err)
			}
			wantFiles(t, served)
			workIsGone(t, p, fake)
		})
	}
}

// Nobody knows then which mounts are those of pods.
func TestNothingIsEmptiedWhereThePodsDirectoryCannotBeResolved(t *testing.T) {
	p, _, served, _ := newEmbedded(t, deleting())
	write(t, served, "kept")
	root := p.Host.(*volume.Host).RootDir
	if err := errors.Join(os.MkdirAll(root, 0o750), os.Symlink("pods", filepath.Join(root, "pods"))); err != nil {
		t.Fatal(err)
	}
	if _, err := recycle(t, p, releasedSpec()); err == nil || volume.IsUncertain(err) {
		t.Errorf("Recycle = %v", err)
	}
	wantFiles(t, served, "kept")
}

// The kernel mounts below a work mount where other file systems of the server
// begin.
func TestSweepFindsWhatIsMountedBelowWorkBehindALink(t *testing.T) {
	for _, linked := range []bool{false, true} {
		p, fake, served := newWorker(t, Config{})
		if linked {
			behindLink(t, p)
		}
		if err := os.Mkdir(filepath.Join(served, "other"), 0o755); err != nil {
			t.Fatal(err)
		}
		work := filepath.Join(p.GetWorkDir(), "left")
		mountAt(t, fake, workExport.String(), work)
		if err := fake.Mount(workExport.String()+"/other", filepath.Join(work, "other"), "nfs", nil); err != nil {
			t.Fatal(err)
		}
		if err := p.SweepWork(t.Context()); err != nil {
			t.Errorf("behind a link %v: %v", linked, err)
		}
		workIsGone(t, p, fake)
	}
}
