package format

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/loopdev"
)

// What was found under a name is what is opened later, or nothing.
func TestNodeThatIsReplaced(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("loop devices need root")
	}
	one, other := loopdev.New(t, 1<<20), loopdev.New(t, 1<<20)
	link := filepath.Join(t.TempDir(), "disk")
	if err := os.Symlink(one.Path, link); err != nil {
		t.Fatal(err)
	}
	n, err := nodeAt(link)
	if err != nil || n.path != one.Path {
		t.Fatalf("%+v, %v", n, err)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other.Path, link); err != nil {
		t.Fatal(err)
	}
	f, err := n.open(unix.O_RDONLY)
	if err != nil {
		t.Fatalf("the link is not asked again: %v", err)
	}
	f.Close()
	for name, path := range map[string]string{"another device": other.Path, "a link": link, "a file": os.Args[0]} {
		n.path = path
		if _, err := openDevice(n, 0); !errors.Is(err, unix.ENOTBLK) && !errors.Is(err, unix.ELOOP) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := lockExclusively(n); err == nil {
			t.Errorf("%s was locked", name)
		}
	}
}

// A child that was forked and has not yet started its program has a copy of the lock's
// descriptor. It does not keep the device from the next one.
func TestLockBesideACopyOfTheDescriptor(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("loop devices need root")
	}
	n, err := nodeAt(loopdev.New(t, 1<<20).Path)
	if err != nil {
		t.Fatal(err)
	}
	lockOnce := func() *os.File {
		t.Helper()
		f, err := lockExclusively(n)
		if err != nil {
			t.Fatal(err)
		}
		copied, err := unix.Dup(int(f.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(copied) })
		return f
	}
	shared, err := share(n, lockOnce())
	if err != nil {
		t.Fatal(err)
	}
	release(shared)
	release(lockOnce())
	release(lockOnce())
}
