package nfs_test

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/nfsserver"
	"github.com/podvol/podvol/util/testenv/vmtest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

// TestInlinePolicyOnRealServers mounts what pods ask for by annotations.
func TestInlinePolicyOnRealServers(t *testing.T) {
	packages := nfsserver.Unpack(t)
	vmtest.Run(t, func(t *testing.T) {
		s := nfsserver.Start(t, packages, nfsserver.Config{Name: "inline", Exports: []nfsserver.Export{
			{Path: "/data"}, {Path: "/squashed", RootSquash: true}, {Path: "/ro", ReadOnly: true},
		}})
		host := &volume.Host{RootDir: nfsserver.DetachBelow(t, t.TempDir()), NodeName: "n", Mounter: host.New(host.Config{})}
		p := nfs.New(nfs.Config{Inline: nfs.InlinePolicy{Servers: []nfs.ServerPolicy{{
			Server: s.Address(), Allow: []string{"vers", "nolock", "timeo", "noatime"}, Defaults: []string{"nosuid", "nodev", "noexec", "timeo=70"},
			MakeBelow: []string{"/data", "/squashed", "/ro"},
		}}}})
		if err := p.Init(host); err != nil {
			t.Fatal(err)
		}
		use := func(t *testing.T, path string, keysAndValues ...string) (entry mount.Entry, err error) {
			t.Helper()
			m, err := p.NewMounter(inline(s.Address(), path), annotated(keysAndValues...))
			if err != nil {
				t.Fatal(err)
			}
			if err := m.SetUp(t.Context(), volume.MounterArgs{}); err != nil {
				return mount.Entry{}, err
			}
			mounts := table.Of(host.Mounter)
			entry, mounted, err := mounts.At(m.GetPath())
			if err != nil || !mounted {
				t.Errorf("nothing is mounted: %v", err)
			}
			tearDown(t, p, "vol1", "u1")
			if _, err := os.Lstat(m.GetPath()); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s is left: %v", m.GetPath(), err)
			}
			return entry, nil
		}
		for _, version := range []string{"3", "4.2"} {
			t.Run("version "+version, func(t *testing.T) {
				entry, err := use(t, "/data/v"+version+"/made", optionsOfVol1, "noatime,nolock,timeo=90,vers="+version, makeVol1, "2770")
				if err != nil {
					t.Fatal(err)
				}
				for name, want := range map[string]string{"nosuid": "", "nodev": "", "noexec": "", "noatime": "", "timeo": "90", "vers": version} {
					if value, ok := entry.Option(name); !ok || value != want {
						t.Errorf("%s is %q, %v in %+v", name, value, ok, entry)
					}
				}
				for _, dir := range []string{"/data/v" + version, "/data/v" + version + "/made"} {
					wantDir(t, s.Path(dir), 0o770|fs.ModeSetgid)
				}
			})
			t.Run("root squash, version "+version, func(t *testing.T) {
				asks := []string{optionsOfVol1, "nolock,vers=" + version, makeVol1, "0750"}
				must(t, os.Chmod(s.Path("/squashed"), 0o755))
				_, err := use(t, "/squashed/v"+version, asks...)
				if !errors.Is(err, unix.EACCES) || !strings.Contains(err.Error(), "no_root_squash") || volume.IsUncertain(err) {
					t.Errorf("where nobody may write: %v", err)
				}
				must(t, os.Chmod(s.Path("/squashed"), 0o777))
				if _, err := use(t, "/squashed/v"+version, asks...); err != nil {
					t.Error(err)
				}
				wantDir(t, s.Path("/squashed/v"+version), 0o750)
				var st unix.Stat_t
				if err := unix.Stat(s.Path("/squashed/v"+version), &st); err != nil || st.Uid == 0 {
					t.Errorf("it is user %d's, %v", st.Uid, err)
				}
			})
			t.Run("read-only export, version "+version, func(t *testing.T) {
				_, err := use(t, "/ro/v"+version, optionsOfVol1, "nolock,vers="+version, makeVol1, "0750")
				if !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "writable to this node") {
					t.Errorf("err = %v", err)
				}
			})
		}
		t.Run("links", func(t *testing.T) {
			must(t, os.Symlink("/squashed", s.Path("/data/link")))
			if _, err := use(t, "/data/link/made", makeVol1, "0770"); !errors.Is(err, nfs.ErrNotMade) || !strings.Contains(err.Error(), "symbolic link") {
				t.Errorf("err = %v", err)
			}
		})
		if left, err := host.Mounter.List(); err != nil || len(mountedBelow(left, host.RootDir)) > 0 {
			t.Errorf("left mounted: %v, %v", mountedBelow(left, host.RootDir), err)
		}
		if _, err := os.Lstat(host.RootDir + "/plugins/kubernetes.io/nfs/work"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("left of the plugin's work: %v", err)
		}
	})
}

func mountedBelow(points []mount.MountPoint, dir string) (below []string) {
	for _, p := range points {
		if strings.HasPrefix(p.Path, dir) {
			below = append(below, p.Path)
		}
	}
	return below
}
