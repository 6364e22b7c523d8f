package nfs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
)

// The pod's volume has another name of the server, which shows once the agent
// has mounted the volume too.
func TestVolumeThatIsMountedByAnotherNameOfItsServerIsNotEmptied(t *testing.T) {
	for name, tc := range map[string]struct {
		source, options string
		mounted         bool
	}{
		"its address":    {"nas:/export/d", "addr=192.0.2.1", true},
		"in IPv6 form":   {"nas:/export/d", "addr=::ffff:192.0.2.1", true},
		"above it":       {"nas:/", "addr=192.0.2.1", true},
		"beside it":      {"nas:/exports", "addr=192.0.2.1", false},
		"another server": {"nas:/export/d", "addr=192.0.2.2", false},
	} {
		t.Run(name, func(t *testing.T) {
			p, fake, served, _ := newEmbedded(t, deleting())
			write(t, served, "d/data")
			dir := p.Host.GetPodVolumeDir("u1", PluginName, "other")
			if err := errors.Join(os.MkdirAll(dir, 0o750), fake.Mount(tc.source, dir, "nfs4", []string{tc.options})); err != nil {
				t.Fatal(err)
			}
			_, err := recycle(t, p, releasedSpec(func(pv *v1.PersistentVolume) {
				pv.Spec.MountOptions = []string{"addr=192.0.2.1"}
			}))
			if !tc.mounted {
				if err != nil {
					t.Errorf("Recycle = %v", err)
				}
				wantFiles(t, served)
				return
			}
			if e, ok := errors.AsType[*volume.Failure](err); !ok || e.Cause != volume.ErrInUse || e.Subject != dir || !strings.HasPrefix(e.What, tc.source+" is") || volume.IsUncertain(err) {
				t.Errorf("Recycle = %v", err)
			}
			wantFiles(t, served, "d/data")
		})
	}
}

// Only the agent's own mounts of this very server say which others are its.
func TestWhatIsSeenOfAServer(t *testing.T) {
	p, _, _ := newWorker(t, Config{})
	at := func(dir, source, fsType string, device uint64, options ...string) mount.Entry {
		return mount.Entry{Target: filepath.Join(dir, "x"), Source: source, FSType: fsType, Device: device, SuperOptions: options}
	}
	work, pods := p.GetWorkDir(), p.Host.GetPodVolumeDir("u1", PluginName, "v")
	seen, err := p.seenOf("SERVER", []mount.Entry{
		at(work, "server:/a", "nfs4", 1, "rw", "addr=192.0.2.1"),
		at(work, "other:/a", "nfs4", 2, "addr=192.0.2.2"),
		at(work, "server:/a", "fuse", 3, "addr=192.0.2.3"),
		at(pods, "server:/a", "nfs4", 4, "addr=192.0.2.4"),
		at(work, "server:/b", "nfs", 5),
	})
	if err != nil {
		t.Fatal(err)
	}
	for device, want := range []bool{false, true, false, false, false, true} {
		if got := seen.has(mount.Entry{Device: uint64(device)}); got != want {
			t.Errorf("a mount of device %d: %v", device, got)
		}
	}
	for address, want := range map[string]bool{"192.0.2.1": true, "192.0.2.2": false, "192.0.2.3": false, "192.0.2.4": false, "": false} {
		if got := seen.has(at(pods, "x:/", "nfs", 9, "addr="+address)); got != want {
			t.Errorf("a mount of %s: %v", address, got)
		}
	}
}
