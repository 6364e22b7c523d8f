package host

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
)

// The fake's unmount must tell its users what the host's would: the same calls
// in the same order, the same rung, and as long a wait.
func TestFakeClimbsAsTheHostDoes(t *testing.T) {
	afters := []time.Duration{0, time.Second, 2 * time.Second}
	for _, block := range []bool{false, true} {
		for _, forceAfter := range afters {
			for _, lazyAfter := range afters {
				options := mount.UnmountOptions{ForceAfter: forceAfter, LazyAfter: lazyAfter}
				for _, silent := range []bool{false, true} {
					t.Run(fmt.Sprintf("block=%v,force=%v,lazy=%v,silent=%v", block, forceAfter, lazyAfter, silent), func(t *testing.T) {
						host, fake := busyHost(t, block, silent, options), busyFake(t, block, silent, options)
						if host != fake {
							t.Errorf("the host: %s\nthe fake: %s", host, fake)
						}
					})
				}
			}
		}
	}
}

// busyHost unmounts on a kernel where all but the lazy unmount says busy.
func busyHost(t *testing.T, block, silent bool, options mount.UnmountOptions) (seen string) {
	entry := nfsEntry
	if block {
		entry = mount.Entry{ID: 7, Device: unix.Mkdev(8, 1), Source: "/dev/sda1", FSType: "ext4", Target: "/t"}
	}
	k := &scripted{entries: []mount.Entry{entry}}
	if silent {
		k.silent = func() error { return unix.EIO }
	}
	k.umount = func(flags int) error {
		if flags == lazy {
			return nil
		}
		return unix.EBUSY
	}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		rung, err := k.mounter().UnmountContext(t.Context(), "/t", options)
		seen = fmt.Sprint(rung, ops(k.tried()), mount.CauseOf(err), time.Since(start))
	})
	return seen
}

func busyFake(t *testing.T, block, silent bool, options mount.UnmountOptions) (seen string) {
	f := fakemount.New()
	t.Cleanup(func() { f.Close() })
	target := filepath.Join(t.TempDir(), "t")
	if err := os.Mkdir(target, 0o755); err != nil {
		t.Fatal(err)
	}
	source, fstype := nfsEntry.Source, nfsEntry.FSType
	if block {
		source, fstype = "/dev/sda1", "ext4"
	}
	if err := f.Mount(source, target, fstype, nil); err != nil {
		t.Fatal(err)
	}
	f.ResetCalls()
	f.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool { return c.Op != fakemount.OpUnmountLazy && c.Op != fakemount.OpStatfs }, Err: unix.EBUSY})
	if silent {
		f.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool { return c.Op == fakemount.OpStatfs }, Err: unix.EIO})
	}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		rung, err := f.UnmountContext(t.Context(), target, options)
		took := time.Since(start)
		var tried []int
		for _, c := range f.Calls() {
			if c.Op == fakemount.OpStatfs {
				continue
			}
			tried = append(tried, map[string]int{mount.OpUnmount: 0, fakemount.OpUnmountForce: force, fakemount.OpUnmountLazy: lazy}[c.Op])
		}
		seen = fmt.Sprint(rung, ops(tried), mount.CauseOf(err), took)
	})
	return seen
}

func ops(flags []int) []string {
	var names []string
	for _, f := range flags {
		names = append(names, map[int]string{0: "normal", force: "force", lazy: "lazy"}[f])
	}
	return names
}
