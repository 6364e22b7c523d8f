package host_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// Somebody swaps the target for a link to a victim and back, as fast as it can,
// while it is mounted on: nothing is ever mounted on the victim, and no mount
// is left that was called failed.
func TestSwappedLinksRedirectNoMount(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		top := t.TempDir()
		mounttest.Mount(t, mounttest.Tmpfs(top, "size=1m"))
		source, victim, moved := testtool.MkdirAll(t, top, "source"), testtool.MkdirAll(t, top, "victim"), filepath.Join(top, "moved")
		target := testtool.MkdirAll(t, top, "target")
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				default:
				}
				// Each may fail where something is mounted; what counts is the end.
				if unix.Rename(target, moved) == nil {
					_ = unix.Symlink(victim, target)
					_ = unix.Unlink(target)
					_ = unix.Rename(moved, target)
				}
			}
		}()
		m := mounttest.WithSystemCalls()
		made := 0
		for i := range 400 {
			r := mounttest.Tmpfs(target, "size=64k")
			if i%2 == 1 {
				r = bindOn(source, target, "ro")
			}
			err := m.MountContext(t.Context(), r)
			e, mounted := mounttest.EntryAt(t, victim)
			if mounted {
				t.Fatalf("the victim is mounted on: %+v", e)
			}
			if err == nil {
				made++
				if err := unix.Unmount(target, unix.MNT_DETACH); err == nil {
					continue
				}
				// Kernels before 6.8 let a rename end that began before the mount.
				if err := unix.Unmount(moved, unix.MNT_DETACH); err != nil {
					t.Errorf("what was reported mounted cannot be unmounted: %v", err)
				}
				continue
			}
			failed, ok := errors.AsType[*mount.Error](err)
			if !ok || failed.Uncertain || !errors.Is(err, mount.ErrNoTarget) && !errors.Is(err, mount.ErrTargetIsLink) && !errors.Is(err, mount.ErrTargetReplaced) {
				t.Errorf("err = %v", err)
			}
		}
		close(stop)
		<-stopped
		t.Logf("%d of 400 mounts were made", made)
		if at, below := mountsBelow(t, top); len(below) > 0 {
			t.Errorf("mounts are left at %v", at)
		}
	})
}

// mountsBelow are the mounts below a directory.
func mountsBelow(t *testing.T, dir string) (targets []string, below []mount.Entry) {
	t.Helper()
	mounts := table.Kernel()
	entries, err := mounts.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Target, dir+"/") {
			targets, below = append(targets, e.Target), append(below, e)
		}
	}
	return targets, below
}

// A bind source that is swapped is what it was when it was looked up, once; the
// mount shows one of the two, never a mixture of checks on one and the other.
func TestBindSourceIsLookedUpOnce(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		top := t.TempDir()
		mounttest.Mount(t, mounttest.Tmpfs(top, "size=1m"))
		mounttest.Mount(t, mounttest.Tmpfs(testtool.MkdirAll(t, top, "guarded"), "size=64k", "nosuid", "nodev", "noexec"))
		target := testtool.MkdirAll(t, top, "target")
		link := filepath.Join(top, "link")
		if err := os.Symlink(filepath.Join(top, "guarded"), link); err != nil {
			t.Fatal(err)
		}
		if err := mounttest.WithSystemCalls().MountContext(t.Context(), bindOn(link, target, "ro")); err != nil {
			t.Fatal(err)
		}
		e, _ := mounttest.EntryAt(t, target)
		for _, option := range []string{"ro", "nosuid", "nodev", "noexec"} {
			if !slices.Contains(e.Options, option) {
				t.Errorf("%s of the source is lost: %v", option, e.Options)
			}
		}
	})
}

// Five hundred at once: none fails and no process is started.
func TestConcurrentMounts(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		const count = 500
		top := t.TempDir()
		mounttest.Mount(t, mounttest.Tmpfs(top, "size=8m"))
		source := testtool.MkdirAll(t, top, "source")
		testtool.WriteFile(t, "shared", source, "file")
		m := noCommand(t, host.ViaBest)
		var all sync.WaitGroup
		for i := range count {
			target := testtool.MkdirAll(t, top, fmt.Sprint("target-", i))
			r := mounttest.Tmpfs(target, "size=64k")
			if i%2 == 1 {
				r = bindOn(source, target, "ro")
			}
			all.Go(func() {
				if err := m.MountContext(t.Context(), r); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if _, below := mountsBelow(t, top); len(below) != count {
			t.Errorf("%d mounts, want %d", len(below), count)
		}
		for i := range count {
			all.Go(func() {
				if _, err := m.UnmountContext(t.Context(), filepath.Join(top, fmt.Sprint("target-", i)), mount.UnmountOptions{}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if at, below := mountsBelow(t, top); len(below) > 0 {
			t.Errorf("mounts are left at %v", at)
		}
	})
}

// wrappedBy returns err and all errors within.
func wrappedBy(err error) []error {
	all := []error{err}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		if within := e.Unwrap(); within != nil {
			all = append(all, wrappedBy(within)...)
		}
	case interface{ Unwrap() []error }:
		for _, within := range e.Unwrap() {
			all = append(all, wrappedBy(within)...)
		}
	}
	return all
}

// What is sensitive reaches the kernel, and nothing else: neither a process nor
// an error, though the kernel itself repeats what it refuses.
func TestSensitiveOptionsOfANativeMount(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		const secret = "hunter2-and-more"
		for name, tc := range map[string]struct {
			sensitive []string
			option    string
		}{
			"unknown key":          {[]string{"password=" + secret}, "password"},
			"bad value":            {[]string{"size=" + secret}, "size"},
			"flag":                 {[]string{secret}, "<masked>"},
			"in a list":            {[]string{"mode=0700,size=" + secret}, "size"},
			"where it is no value": {[]string{"ro=" + secret}, "ro"},
		} {
			target := t.TempDir()
			err := noCommand(t, host.ViaBest).MountContext(t.Context(), mount.Request{
				Source: "tmpfs", Target: target, FSType: "tmpfs", Options: []string{"nr_inodes=100"}, Sensitive: tc.sensitive,
			})
			e, ok := errors.AsType[*mount.Error](err)
			if !ok || !errors.Is(err, mount.ErrBadOption) || e.Option != tc.option {
				t.Errorf("%s: option %q, want %q: %v", name, e.Option, tc.option, err)
			}
			for _, at := range wrappedBy(err) {
				if shown := fmt.Sprintf("%v %+v %#v", at, at, at); strings.Contains(shown, secret) {
					t.Errorf("%s: the secret is in %s", name, shown)
				}
			}
		}
		// Set well, it does its work.
		target := t.TempDir()
		if err := noCommand(t, host.ViaBest).MountContext(t.Context(), mount.Request{
			Source: "tmpfs", Target: target, FSType: "tmpfs", Sensitive: []string{"size=64k,nosuid"},
		}); err != nil {
			t.Fatal(err)
		}
		if e, _ := mounttest.EntryAt(t, target); !slices.Contains(e.SuperOptions, "size=64k") || !slices.Contains(e.Options, "nosuid") {
			t.Errorf("mounted as %+v", e)
		}
	})
}

// What cannot be taken away is named.
func TestLockedFlagIsNamed(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		if !inUserNamespace(t) {
			return // nothing is locked for root, which TestBindOfLockedFlags asserts
		}
		source, flags := flaggedMount(t)
		target := t.TempDir()
		mounttest.Mount(t, mount.Request{Source: source, Target: target, Options: []string{"rbind"}})
		before, _ := mounttest.EntryAt(t, target)
		opposites := map[string]string{"nosuid": "suid", "nodev": "dev", "noexec": "exec", "noatime": "strictatime", "relatime": "strictatime", "ro": "rw"}
		for _, flag := range flags {
			opposite, ok := opposites[flag]
			if !ok {
				continue
			}
			for name, r := range map[string]mount.Request{
				"bind":    {Source: source, Target: t.TempDir(), Options: []string{"rbind", opposite}},
				"remount": {Target: target, Options: []string{"remount", "bind", opposite}},
			} {
				err := mounttest.WithSystemCalls().MountContext(t.Context(), r)
				e, ok := errors.AsType[*mount.Error](err)
				if !ok || !errors.Is(err, mount.ErrNotPermitted) || e.Uncertain || e.Option == "" || !strings.Contains(err.Error(), "locked") {
					t.Errorf("%s with %s: option %q: %v", name, opposite, e.Option, err)
				}
				if strings.HasPrefix(flag, "no") && flag != "noatime" && e != nil && e.Option != flag {
					t.Errorf("%s with %s names %q, want %s", name, opposite, e.Option, flag)
				}
			}
		}
		after, _ := mounttest.EntryAt(t, target)
		if !slices.Equal(before.Options, after.Options) {
			t.Errorf("%v has become %v", before.Options, after.Options)
		}
	})
}
