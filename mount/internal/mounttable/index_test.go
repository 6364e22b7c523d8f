package mounttable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/statmount"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// agree compares an index with mountinfo at path and as a whole.
func agree(t *testing.T, x *Table, paths ...string) {
	t.Helper()
	for _, p := range paths {
		want, wantOK, wantErr := Uncached{}.At(p)
		got, ok, err := x.At(p)
		if diff := cmp.Diff(want, got); diff != "" || ok != wantOK || (err == nil) != (wantErr == nil) {
			t.Errorf("At(%q) = %v, %v, want %v, %v (-mountinfo +index):\n%s", p, ok, err, wantOK, wantErr, diff)
		}
	}
	want, err := Uncached{}.All()
	testtool.Must(t, err)
	got, err := x.All()
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("All: %v (-mountinfo +index):\n%s", err, diff)
	}
}

func TestIndexNoticesWhatGivesNoSignal(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base := t.TempDir()
		target, source, bound := testtool.MkdirAll(t, base, "up", "target"), testtool.MkdirAll(t, base, "source"), testtool.MkdirAll(t, base, "bound")
		testtool.Must(t, unix.Mount("volume", target, "tmpfs", 0, "size=64k"))
		testtool.Must(t, unix.Mount(source, bound, "", unix.MS_BIND, ""))
		x := New(statmount.Host{})
		agree(t, x, target, bound)
		for _, change := range []struct {
			what string
			do   func() error
		}{
			{"propagation", func() error { return unix.Mount("", target, "", unix.MS_SHARED, "") }},
			{"options of the file system", func() error { return reconfigure(target, "size", "128k") }},
			{"a directory above it renamed", func() error {
				err := os.Rename(filepath.Join(base, "up"), filepath.Join(base, "new"))
				target = filepath.Join(base, "new", "target")
				return err
			}},
			{"the bound directory removed", func() error { return os.Remove(source) }},
		} {
			testtool.Must(t, change.do())
			if x.byMountinfo { // such a kernel is asked again only after a signal
				testtool.Must(t, unix.Mount(base, base, "", unix.MS_BIND, ""))
				testtool.Must(t, unix.Unmount(base, unix.MNT_DETACH))
			}
			for _, p := range []string{target, bound, filepath.Join(base, "up", "target")} {
				want, wantOK, _ := Uncached{}.At(p)
				got, ok, err := x.At(p)
				if diff := cmp.Diff(want, got); diff != "" || ok != wantOK || err != nil {
					t.Errorf("%s: At(%q) = %v, %v (-mountinfo +index):\n%s", change.what, p, ok, err, diff)
				}
			}
		}
		if e, _, _ := x.At(bound); filepath.Base(e.Root) != "deleted" {
			t.Errorf("the root of what was removed is %q", e.Root)
		}
		if e, ok, _ := x.At(target); !ok || !slices.Contains(e.SuperOptions, "size=128k") || len(e.Propagation) != 1 {
			t.Errorf("the mount is %v, %+v", ok, e)
		}
		testtool.Must(t, unix.Unmount(bound, 0))
		testtool.Must(t, unix.Unmount(target, 0))
		agree(t, x, target, bound)
	})
}

// reconfigure changes an option as fsconfig(2) does, which gives no signal.
func reconfigure(target, key, value string) error {
	fd, err := unix.Fspick(unix.AT_FDCWD, target, unix.FSPICK_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.FsconfigSetString(fd, key, value); err != nil {
		return err
	}
	return unix.FsconfigReconfigure(fd)
}

func TestIndexFollowsTheProcessIntoAnotherRoot(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		jail := t.TempDir()
		inside, proc := testtool.MkdirAll(t, jail, "inside"), testtool.MkdirAll(t, jail, "proc")
		testtool.Must(t, unix.Mount("inside", inside, "tmpfs", 0, ""))
		testtool.Must(t, unix.Mount("/proc", proc, "", unix.MS_BIND|unix.MS_REC, ""))
		old, err := os.Open("/")
		testtool.Must(t, err)
		defer old.Close()
		x := New(statmount.Host{})
		agree(t, x, inside, "/inside", "/")
		testtool.Must(t, unix.Chroot(jail))
		agree(t, x, inside, "/inside", "/", "/proc") // the mounts outside have escaped
		entries, err := x.All()
		if err != nil || len(entries) == 0 || slices.ContainsFunc(entries, func(e mount.Entry) bool { return e.Target == "/" }) {
			t.Errorf("in a root that is no mount point: %v, %v", entries, err)
		}
		testtool.Must(t, old.Chdir())
		testtool.Must(t, unix.Chroot("."))
		agree(t, x, inside, "/inside", "/")
	})
}

// A thread in a mount namespace of its own is told of the process's mounts.
func TestIndexOnAThreadElsewhere(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		testtool.Must(t, unix.Mount("of the process", dir, "tmpfs", 0, ""))
		x := New(statmount.Host{})
		agree(t, x, dir)
		testtool.Must(t, onThreadOfItsOwn(func() error {
			if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
				return err
			}
			if err := unix.Mount("of the thread", dir, "tmpfs", 0, ""); err != nil {
				return err
			}
			e, ok, err := x.At(dir)
			if err != nil || !ok || e.Source != "of the process" {
				return fmt.Errorf("At = %+v, %v, %v", e, ok, err)
			}
			found, err := x.BySource("of the thread")
			if err != nil || len(found) > 0 {
				return fmt.Errorf("BySource = %+v, %v", found, err)
			}
			return nil
		}))
		agree(t, x, dir)
	})
}

// onThreadOfItsOwn runs f on a thread that ends with it, and is not the one that
// stands for the process in /proc/self.
func onThreadOfItsOwn(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		if unix.Gettid() == unix.Getpid() {
			result <- onThreadOfItsOwn(f)
			return
		}
		result <- f()
	}()
	return <-result
}

func TestIndexAfterMoreEventsThanTheKernelKeeps(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base := t.TempDir()
		kept, gone := testtool.MkdirAll(t, base, "kept"), testtool.MkdirAll(t, base, "gone")
		testtool.Must(t, unix.Mount("gone", gone, "tmpfs", 0, ""))
		few, many := New(statmount.Host{}), New(statmount.Host{})
		agree(t, few, kept, gone)
		agree(t, many, kept, gone)
		change(t, kept, few, many) // from here on events name what changes
		for i := range 9000 {      // two events each; 16384 are kept, and 4096 followed
			testtool.Must(t, unix.Mount(base, kept, "", unix.MS_BIND, ""))
			testtool.Must(t, unix.Unmount(kept, unix.MNT_DETACH))
			if i%2500 == 0 {
				_, _, err := few.At(kept)
				testtool.Must(t, err)
			}
		}
		testtool.Must(t, unix.Mount("kept", kept, "tmpfs", 0, ""))
		testtool.Must(t, unix.Unmount(gone, 0))
		agree(t, few, kept, gone)
		agree(t, many, kept, gone)
	})
}

// Each of many goroutines finds at once what it has mounted, and not what it
// has unmounted.
func TestIndexIsNeverBehind(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base := t.TempDir()
		x := New(statmount.Host{})
		var workers sync.WaitGroup
		for n := range 8 {
			dir, source := testtool.MkdirAll(t, base, fmt.Sprint(n), "same"), fmt.Sprintf("volume %d", n)
			workers.Go(func() {
				for range 60 {
					if err := unix.Mount(source, dir, "tmpfs", 0, "size=64k"); err != nil {
						t.Error(err)
						return
					}
					e, ok, err := x.At(dir)
					found, findErr := x.BySource(source)
					if err != nil || !ok || e.Source != source || findErr != nil || len(found) != 1 {
						t.Errorf("mounted: At = %+v, %v, %v; BySource = %v, %v", e, ok, err, found, findErr)
					}
					points, err := x.List()
					if err != nil || !slices.ContainsFunc(points, func(p mount.MountPoint) bool { return p.Path == dir }) {
						t.Errorf("mounted, and not in the list: %v", err)
					}
					if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
						t.Error(err)
					}
					if e, ok, err := x.At(dir); ok || err != nil {
						t.Errorf("unmounted: At = %+v, %v, %v", e, ok, err)
					}
				}
			})
		}
		workers.Wait()
		agree(t, x, base)
	})
}

func TestIndexAnswersAreTheCallers(t *testing.T) {
	x := New(statmount.Host{})
	spoil := func(entries []mount.Entry) {
		for _, e := range entries {
			for _, list := range [][]string{e.Options, e.SuperOptions, e.Propagation} {
				for i := range list {
					list[i] = "spoilt"
				}
				_ = append(list, "spoilt")
			}
		}
	}
	all, err := x.All()
	testtool.Must(t, err)
	for _, e := range all {
		own := []mount.Entry{e}
		spoil(own)
	}
	points, err := x.List()
	testtool.Must(t, err)
	for _, p := range points {
		for i := range p.Opts {
			p.Opts[i] = "spoilt"
		}
		_ = append(p.Opts, "spoilt")
	}
	at, _, err := x.At("/proc")
	testtool.Must(t, err)
	byDevice, err := x.ByDevice(at.Device)
	testtool.Must(t, err)
	spoil(append(byDevice, at))
	agree(t, x, "/proc")
	again, err := x.List()
	testtool.Must(t, err)
	for _, p := range again {
		if slices.Contains(p.Opts, "spoilt") {
			t.Fatalf("%+v", p)
		}
	}
	// What one caller appends to one list is not seen in the next.
	all, err = x.All()
	testtool.Must(t, err)
	for i, e := range all {
		_ = append(e.Options, "appended")
		if slices.Contains(all[i].SuperOptions, "appended") {
			t.Fatalf("%+v", all[i])
		}
	}
}

// failingLater is a kernel that stops to answer, as under a new seccomp filter.
type failingLater struct {
	statmount.Host
	broken bool
}

func (k *failingLater) Read(id uint64, want statmount.Fields, buffer []byte) (statmount.Record, error) {
	if k.broken {
		return nil, os.NewSyscallError("statmount", unix.EACCES)
	}
	return k.Host.Read(id, want, buffer)
}

func TestIndexFallsBackToMountinfo(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base := t.TempDir()
		first, second := testtool.MkdirAll(t, base, "first"), testtool.MkdirAll(t, base, "second")
		testtool.Must(t, unix.Mount("volume", first, "tmpfs", 0, ""))
		kernel := &failingLater{}
		x := New(kernel)
		agree(t, x, first, second)
		kernel.broken = true
		testtool.Must(t, unix.Mount("volume", second, "tmpfs", 0, ""))
		agree(t, x, first, second)
		found, err := x.BySource("volume")
		refs, refsErr := x.Refs(first)
		points, listErr := x.List()
		if err != nil || len(found) != 2 || refsErr != nil || len(refs) != 0 || listErr != nil || len(points) < 3 {
			t.Errorf("BySource = %v, %v; refs = %v, %v; list = %v, %v", found, err, refs, refsErr, points, listErr)
		}
	})
}

func TestIndexClosesItsDescriptorsWhenDropped(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir, before := t.TempDir(), testtool.OpenFiles(t)
		for range 10 {
			x := New(statmount.Host{})
			_, _, err := x.At(dir)
			testtool.Must(t, err)
			change(t, dir, x)
		}
		for deadline := time.Now().Add(time.Minute); testtool.OpenFiles(t) > before; runtime.Gosched() {
			runtime.GC()
			if time.Now().After(deadline) {
				t.Fatalf("%d descriptors are left open", testtool.OpenFiles(t)-before)
			}
		}
	})
}

// Whoever asks for a table that does not change has no group of events to close at its end.
func TestIndexAsksForEventsAtTheFirstChange(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir, kernel := t.TempDir(), new(watchCounter)
		x := New(kernel)
		agree(t, x, dir, "/proc")
		if kernel.watches != 0 {
			t.Errorf("events were asked for %d times, of a table that did not change", kernel.watches)
		}
		for range 3 {
			change(t, dir, x)
		}
		if kernel.watches != 1 {
			t.Errorf("events were asked for %d times, want once after three changes", kernel.watches)
		}
		agree(t, x, dir)
	})
}

// watchCounter is this machine's kernel, and counts who wants its events.
type watchCounter struct {
	statmount.Host
	watches int
}

func (k *watchCounter) Watch() (*os.File, error) {
	k.watches++
	return k.Host.Watch()
}

// change mounts something and unmounts it, and has the indexes notice.
func change(t *testing.T, dir string, indexes ...*Table) {
	t.Helper()
	testtool.Must(t, unix.Mount(dir, dir, "", unix.MS_BIND, ""))
	testtool.Must(t, unix.Unmount(dir, unix.MNT_DETACH))
	for _, x := range indexes {
		_, _, err := x.At(dir)
		testtool.Must(t, err)
	}
}

func TestIndexWithoutMountinfo(t *testing.T) {
	x := New(statmount.Host{})
	x.path = filepath.Join(t.TempDir(), "missing")
	if err := x.answer(func() (bool, error) { return false, nil }); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("err = %v", err)
	}
}

func TestEntryOption(t *testing.T) {
	e := mount.Entry{Options: []string{"rw", "nosuid"}, SuperOptions: []string{"ro", "vers=4.1", "vers=4.2", "opt=a=b", "empty="}}
	for name, want := range map[string]struct {
		value string
		ok    bool
	}{"vers": {"4.2", true}, "nosuid": {"", true}, "opt": {"a=b", true}, "empty": {"", true}, "ver": {"", false}, "": {"", false}} {
		if value, ok := e.Option(name); value != want.value || ok != want.ok {
			t.Errorf("Option(%q) = %q, %v", name, value, ok)
		}
	}
}
