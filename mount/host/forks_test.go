package host_test

import (
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// A process that is being started holds copies of the descriptors of mounts
// under way; nobody may see his mount busy for that.
func TestUnmountWhileProcessesAreStarted(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m, dir := host.New(host.Config{}), t.TempDir()
		stop := make(chan struct{})
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						if err := exec.Command("/bin/true").Run(); err != nil {
							t.Error(err)
							return
						}
					}
				}
			})
		}
		rounds := 2000
		if testtool.Shortened() {
			rounds = 200
		}
		for range rounds {
			if err := m.Mount("x", dir, "tmpfs", nil); err != nil {
				t.Error(err)
				break
			}
			if err := m.Unmount(dir); err != nil {
				t.Error(err)
				break
			}
		}
		close(stop)
		all.Wait()
	})
}

// However long starting a process takes, its copies of descriptors are no use of
// the mount.
func TestUnmountWaitsForAProcessThatIsBeingStarted(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m, dir := host.New(host.Config{}), t.TempDir()
		if err := m.Mount("x", dir, "tmpfs", nil); err != nil {
			t.Fatal(err)
		}
		copied, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		syscall.ForkLock.Lock() // as between fork and execve
		time.AfterFunc(500*time.Millisecond, func() {
			copied.Close()
			syscall.ForkLock.Unlock()
		})
		if err := m.Unmount(dir); err != nil {
			t.Error(err)
		}
	})
}

// Options alone change what is mounted; with a source they are a new mount's.
func TestPropagationOfANewMount(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for name, m := range map[string]mount.Interface{"host": host.New(host.Config{}), "command": host.New(host.Config{Via: host.ViaCommand})} {
			t.Run(name, func(t *testing.T) {
				if name == "command" {
					testtool.Need(t, "mount")
				}
				dir := t.TempDir()
				for _, r := range []mount.Request{
					{Source: "one", Target: dir, FSType: "tmpfs"},
					{Source: "two", Target: dir, FSType: "tmpfs", Options: []string{"shared"}},
				} {
					if err := mount.Mount(t.Context(), m, r); err != nil {
						t.Fatal(err)
					}
				}
				mounts := table.Kernel()
				e, ok, err := mounts.At(dir)
				if err != nil || !ok || e.Source != "two" || len(e.Propagation) != 1 {
					t.Errorf("%+v, %v, %v", e, ok, err)
				}
				if below, err := mounts.BySource("one"); err != nil || len(below) != 1 || len(below[0].Propagation) != 0 {
					t.Errorf("beneath: %+v, %v", below, err)
				}
				for range 2 {
					if err := m.Unmount(dir); err != nil {
						t.Error(err)
					}
				}
			})
		}
	})
}
