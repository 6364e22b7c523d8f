package host

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// busyOnce is a kernel that calls the first unmount busy and does something
// else meanwhile.
type busyOnce struct {
	hostCalls
	meanwhile func()
	done      bool
}

func (c *busyOnce) unmountOnce(target string, flags int) error { return c.unmount(target, flags) }

func (b *busyOnce) unmount(target string, flags int) error {
	if !b.done {
		b.done = true
		b.meanwhile()
		return unix.EBUSY
	}
	return unix.Unmount(target, flags)
}

func TestUnmountIsNotLedElsewhere(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		top := t.TempDir()
		var places []string
		for _, name := range []string{"good", "evil"} {
			place := filepath.Join(top, name, "volume")
			if err := os.MkdirAll(place, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount(name, place, "tmpfs", 0, ""); err != nil {
				t.Fatal(err)
			}
			places = append(places, place)
		}
		link := filepath.Join(top, "link")
		leadTo := func(place string) {
			if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			if err := os.Symlink(filepath.Dir(place), link); err != nil {
				t.Fatal(err)
			}
		}
		leadTo(places[0])
		m := New(Config{})
		m.sys = &busyOnce{meanwhile: func() { leadTo(places[1]) }}
		_, err := m.UnmountContext(t.Context(), link+"/volume", mount.UnmountOptions{LazyAfter: time.Minute})
		if !errors.Is(err, mount.ErrTargetReplaced) {
			t.Errorf("err = %v", err)
		}
		for _, place := range places {
			if _, ok, err := m.table.At(place); !ok || err != nil {
				t.Errorf("%s: mounted %v, %v", place, ok, err)
			}
		}
		// A link that stays is followed.
		if rung, err := New(Config{}).UnmountContext(t.Context(), link+"/volume", mount.UnmountOptions{}); err != nil || rung != mount.RungNormal {
			t.Errorf("rung %v, err = %v", rung, err)
		}
		if _, ok, _ := m.table.At(places[1]); ok {
			t.Error("what the link leads to is still mounted")
		}
	})
}

// busyAtFirst is a kernel whose mount is busy at the first call only.
type busyAtFirst struct {
	hostCalls
	meanwhile func()
	again     string
}

func (b *busyAtFirst) unmountOnce(string, int) error {
	b.meanwhile()
	return unix.EBUSY
}

func (b *busyAtFirst) unmount(target string, flags int) error {
	b.again = target
	return b.hostCalls.unmount(target, flags)
}

// A busy mount is tried again where the target leads to then, whatever a link in it does
// between one try and the next.
func TestUnmountWithoutLimitOfABusyMount(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		target := filepath.Join(t.TempDir(), "volume")
		if err := os.Mkdir(target, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("volume", target, "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		m, called := New(Config{}), 0
		busy := &busyAtFirst{meanwhile: func() { called++ }}
		m.sys = busy
		if err := m.Unmount(target); err != nil || called != 1 || filepath.Dir(busy.again) == filepath.Dir(target) {
			t.Errorf("%v, after %d calls by the path and one by %s", err, called, busy.again)
		}
		if err := m.Unmount(target); !errors.Is(err, unix.EINVAL) {
			t.Errorf("once more: %v", err)
		}
		if _, ok, err := m.table.At(target); ok || err != nil {
			t.Errorf("mounted: %v, %v", ok, err)
		}
	})
}
