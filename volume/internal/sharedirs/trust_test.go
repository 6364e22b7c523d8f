package sharedirs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Who could write in the bookkeeping could forge marks.
func TestBookkeepingOfOthers(t *testing.T) {
	for _, dir := range []string{"", "marks", "parents", "staging", "trash"} {
		for _, mode := range []os.FileMode{0o777, 0o720, 0o702} {
			b := openBase(t)
			mustMake(t, b, wish("data", "pv1"))
			if err := os.Chmod(b.path(bookDir+"/"+dir), mode); err != nil {
				t.Fatal(err)
			}
			for _, err := range []error{b.make(t.Context(), wish("other", "pv2")), b.remove(t.Context(), "data", owner("pv1"), Delete)} {
				exposed, ok := caused(err, ErrExposed)
				if !ok || !strings.Contains(exposed.Error(), fmt.Sprintf("the mode %#o:", mode)) || !strings.HasSuffix(exposed.Path, dir) {
					t.Errorf("%q with mode %#o: %v", dir, mode, err)
				}
			}
			if got := tree(t, b.root.Name()); got != "dgrwxrwx--- data\n" {
				t.Errorf("left\n%s", got)
			}
		}
	}
	b := openBase(t)
	if err := os.Symlink(t.TempDir(), b.path(bookDir)); err != nil {
		t.Fatal(err)
	}
	if err := b.make(t.Context(), wish("data", "pv1")); !errors.Is(err, ErrOccupied) {
		t.Errorf("%v", err)
	}
}

// A server may take this process for somebody else, who then owns what it makes.
func TestSquashedAgent(t *testing.T) {
	b := openBase(t)
	b.agent++
	mustMake(t, b, wish("ns/data", "pv1"))
	mustRemove(t, b, "ns/data", "pv1")
	assertBookEmpty(t, b)
	if left, err := os.ReadDir(b.path(bookDir)); err != nil || len(left) != 4 {
		t.Errorf("left in the bookkeeping: %v, %v", left, err)
	}
}

func TestOwnerOfTheBookkeeping(t *testing.T) {
	b := openBase(t)
	mustMake(t, b, wish("data", "pv1"))
	dir, err := os.Open(b.path(bookDir))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	foreign, ok := caused(checkOwner(dir, b.agent+1), ErrForeign)
	if !ok || !strings.Contains(foreign.Error(), "not trusted") ||
		!strings.Contains(foreign.Error(), fmt.Sprintf("belongs to user %d, while what this node makes there belongs to user %d", b.agent, b.agent+1)) {
		t.Errorf("%v", foreign)
	}
	if os.Geteuid() != 0 {
		return // only root can give a directory away
	}
	for _, name := range []string{"", "marks", "parents", "staging", "trash"} {
		b := openBase(t)
		mustMake(t, b, wish("data", "pv1"))
		if err := os.Chown(b.path(bookDir+"/"+name), 4711, 4711); err != nil {
			t.Fatal(err)
		}
		if err := b.make(t.Context(), wish("other", "pv2")); !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "belongs to user 4711") {
			t.Errorf("make, with %q: %v", name, err)
		}
		if err := b.remove(t.Context(), "data", owner("pv1"), Delete); !errors.Is(err, ErrForeign) {
			t.Errorf("remove, with %q: %v", name, err)
		}
		if got := tree(t, b.root.Name()); got != "dgrwxrwx--- data\n" {
			t.Errorf("left\n%s", got)
		}
	}
}

// Where the server takes the agent and a pod's root for the same ordinary user,
// the pod can take away the agent's permissions too.
func TestVolumeClosedByItsUsers(t *testing.T) {
	for _, mode := range []os.FileMode{0o500, 0} {
		for _, openat2 := range []bool{true, false} {
			b := openBase(t)
			b.kernel.openat2 = openat2
			asUser(t, b, func() {
				mustMake(t, b, wish("ns/data", "pv1"))
				write(t, b.path("ns/data/deep/file"), "x")
				if err := errors.Join(os.Chmod(b.path("ns/data/deep"), mode), os.Chmod(b.path("ns/data"), mode)); err != nil {
					t.Fatal(err)
				}
				mustRemove(t, b, "ns/data", "pv1")
			})
			if got := tree(t, b.root.Name()); got != "" {
				t.Errorf("%v left\n%s", mode, got)
			}
		}
	}
}

// asUser calls f on a thread without root's power over files.
func asUser(t *testing.T, b *base, f func()) {
	t.Helper()
	if os.Geteuid() == 0 {
		const user = 4711
		if err := errors.Join(os.Chmod(b.root.Name()+"/..", 0o711), os.Chown(b.root.Name(), user, user)); err != nil {
			t.Fatal(err)
		}
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := unix.Setfsuid(user); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unix.Setfsuid(0); err != nil {
				t.Error(err)
			}
		}()
	}
	f()
}
