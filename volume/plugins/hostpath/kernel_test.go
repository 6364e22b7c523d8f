package hostpath_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/hostpath"
)

func TestKernelMountPointIsADirectory(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		base := t.TempDir()
		disk := filepath.Join(base, "disk")
		if err := os.Mkdir(disk, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("disk", disk, "tmpfs", 0, "mode=0711"); err != nil {
			t.Fatal(err)
		}
		host := &volume.Host{RootDir: filepath.Join(base, "root"), Mounter: host.New(host.Config{})}
		p := hostpath.New(hostpath.Config{})
		if err := p.Init(host); err != nil {
			t.Fatal(err)
		}
		for path, kind := range map[string]v1.HostPathType{
			disk:                              v1.HostPathDirectoryOrCreate,
			filepath.Join(disk, "new", "dir"): v1.HostPathDirectoryOrCreate,
			filepath.Join(disk, "new.sock"):   v1.HostPathFileOrCreate,
		} {
			if err := setUp(t, p, inline(path, kind)); err != nil {
				t.Error(err)
			}
		}
		if info, err := os.Stat(disk); err != nil || info.Mode().Perm() != 0o711 {
			t.Errorf("the mount point has mode %v, %v", info.Mode(), err)
		}
		u, err := p.NewUnmounter("vol", "u1")
		if err != nil {
			t.Fatal(err)
		}
		if err := u.TearDown(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(disk, "new", "dir")); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(host.RootDir); err == nil {
			t.Error("something was made below the root")
		}
	})
}
