package sharedirs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

var errCrash = errors.New("the process has died")

// crashAt lets the process die at the nth step.
func (b *base) crashAt(n int) (at *string) {
	at = new(string)
	seen := 0
	b.step = func(name string) error {
		if seen++; seen >= n {
			if seen == n {
				*at = name
			}
			return errCrash
		}
		return nil
	}
	return at
}

// crashes runs an operation as often as it has steps, the process dying at
// another one each time, and then what a new process does about it.
func crashes(t *testing.T, prepare func(*base), operation func(*base) error, after func(*base)) {
	t.Helper()
	for n := 1; ; n++ {
		b := openBase(t)
		prepare(b)
		at := b.crashAt(n)
		err := operation(b)
		b.step = nil
		if *at == "" {
			if err != nil || n < 5 {
				t.Fatalf("undisturbed after %d steps: %v", n, err)
			}
			t.Logf("%d steps", n-1)
			return
		}
		if !errors.Is(err, errCrash) {
			t.Errorf("crash %s (step %d): the error is %v", *at, n, err)
		}
		after(b)
		if t.Failed() {
			t.Fatalf("that was after a crash %s (step %d)", *at, n)
		}
	}
}

func makeData(b *base) error { return b.make(context.Background(), wish("ns/deep/data", "pv1")) }
func removeData(b *base) error {
	return b.remove(context.Background(), "ns/deep/data", owner("pv1"), Delete)
}

func TestCrashWhileMaking(t *testing.T) {
	const want = "drwxr-xr-x ns\ndrwxr-xr-x ns/deep\ndgrwxrwx--- ns/deep/data\n"
	nothing := func(*base) {}
	t.Run("made again", func(t *testing.T) {
		crashes(t, nothing, makeData, func(b *base) {
			mustMake(t, b, wish("ns/deep/data", "pv1"))
			if got := tree(t, b.root.Name()); got != want {
				t.Errorf("made\n%s", got)
			}
			mustRemove(t, b, "ns/deep/data", "pv1")
			assertOnlyForgotten(t, b)
		})
	})
	t.Run("removed", func(t *testing.T) {
		crashes(t, nothing, makeData, func(b *base) {
			if _, err := os.Stat(b.path(bookDir)); err != nil {
				return // nothing was made, and nobody told that it was
			}
			mustRemove(t, b, "ns/deep/data", "pv1")
			if got := tree(t, b.root.Name()); strings.Contains(got, "data") {
				t.Errorf("left\n%s", got)
			}
			mustMake(t, b, wish("ns/deep/data", "pv1"))
			mustRemove(t, b, "ns/deep/data", "pv1")
			assertOnlyForgotten(t, b)
		})
	})
	// Another volume gets the path, or a refusal that names the owner.
	t.Run("another volume", func(t *testing.T) {
		crashes(t, nothing, makeData, func(b *base) {
			err := b.make(context.Background(), wish("ns/deep/data", "pv2"))
			occupied, refused := caused(err, ErrOccupied)
			if err != nil && (!refused || occupied.Owner != owner("pv1")) {
				t.Errorf("make: %v", err)
			}
			if err == nil {
				if err := makeData(b); !errors.Is(err, ErrOccupied) || ownerIn(err) != owner("pv2") {
					t.Errorf("make again: %v", err)
				}
			}
		})
	})
	// Somebody makes a directory of his own at the path meanwhile.
	t.Run("occupied", func(t *testing.T) {
		crashes(t, nothing, makeData, func(b *base) {
			err := os.MkdirAll(b.path("ns/deep"), 0o755)
			if err == nil {
				err = os.Mkdir(b.path("ns/deep/data"), 0o711)
			}
			if errors.Is(err, unix.EEXIST) {
				return // ours is there already
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := makeData(b); !errors.Is(err, ErrOccupied) {
				t.Errorf("make: %v", err)
			}
			if err := removeData(b); !errors.Is(err, ErrOccupied) {
				t.Errorf("remove: %v", err)
			}
			if info, err := os.Stat(b.path("ns/deep/data")); err != nil || info.Mode().Perm() != 0o711 {
				t.Errorf("the foreign directory is %v, %v", info, err)
			}
		})
	})
}

func TestCrashWhileRemoving(t *testing.T) {
	for _, how := range []OnDelete{Delete, Archive, Retain} {
		t.Run(string(how), func(t *testing.T) {
			prepare := func(b *base) {
				w := wish("ns/deep/data", "pv1")
				w.OnDelete = how
				mustMake(t, b, w)
				mustMake(t, b, wish("ns/other", "pv2"))
				write(t, b.path("ns/deep/data/file"), "x")
			}
			remove := func(b *base) error { return b.remove(context.Background(), "ns/deep/data", owner("pv1"), how) }
			want := map[OnDelete]string{
				Delete:  "",
				Archive: "drwxr-xr-x ns/deep\ndgrwxrwx--- ns/deep/archived-data\n-rw-r--r-- ns/deep/archived-data/file\n",
				Retain:  "drwxr-xr-x ns/deep\ndgrwxrwx--- ns/deep/data\n-rw-r--r-- ns/deep/data/file\n",
			}[how]
			want = "drwxr-xr-x ns\n" + want + "dgrwxrwx--- ns/other\n"
			crashes(t, prepare, remove, func(b *base) {
				for range 2 {
					if err := remove(b); err != nil {
						t.Errorf("remove again: %v", err)
					}
				}
				if got := tree(t, b.root.Name()); got != want {
					t.Errorf("left\n%swant\n%s", got, want)
				}
				mustRemove(t, b, "ns/other", "pv2")
			})
		})
	}
}

// While a deletion is not finished its path can be free already; what is made
// there then is not what is deleted.
func TestPathIsFreeWhileItsVolumeIsDeleted(t *testing.T) {
	prepare := func(b *base) {
		mustMake(t, b, wish("ns/deep/data", "pv1"))
		write(t, b.path("ns/deep/data/old"), "x")
	}
	freed := 0
	crashes(t, prepare, removeData, func(b *base) {
		err := b.make(context.Background(), wish("ns/deep/data", "pv2"))
		if err != nil {
			if !errors.Is(err, ErrOccupied) {
				t.Errorf("make: %v", err)
			}
			return
		}
		freed++
		write(t, b.path("ns/deep/data/new"), "x")
		if err := removeData(b); err != nil {
			t.Errorf("remove: %v", err)
		}
		if got := tree(t, b.root.Name()); !strings.Contains(got, "ns/deep/data/new\n") || strings.Contains(got, "old") {
			t.Errorf("there is\n%s", got)
		}
		mustRemove(t, b, "ns/deep/data", "pv2")
		assertBookEmpty(t, b)
	})
	if freed == 0 {
		t.Error("the path was never free before the end")
	}
}

// What somebody puts in place of a directory at the very moment of its removal
// is put back.
func TestReplacedInTheVeryMoment(t *testing.T) {
	for _, how := range []OnDelete{Delete, Archive} {
		b := openBase(t)
		w := wish("data", "pv1")
		w.OnDelete = how
		mustMake(t, b, w)
		b.step = func(name string) error {
			if name != "before move out" {
				return nil
			}
			write(t, b.path("new/file"), "precious")
			return errors.Join(os.Rename(b.path("data"), b.path("aside")), os.Rename(b.path("new"), b.path("data")))
		}
		if err := b.remove(t.Context(), "data", owner("pv1"), Delete); !errors.Is(err, ErrReplaced) {
			t.Errorf("%s: %v", how, err)
		}
		if data, err := os.ReadFile(b.path("data/file")); err != nil || string(data) != "precious" {
			t.Errorf("%s: %q, %v", how, data, err)
		}
	}
}

// A failed call ends the operation with its cause; another one goes on.
func TestFailureAtEachStep(t *testing.T) {
	for n := 1; ; n++ {
		b := openBase(t)
		seen, name := 0, ""
		b.step = func(step string) error {
			if seen++; seen == n {
				name = step
				return &Error{Op: "step", Path: step, Err: unix.ENOSPC}
			}
			return nil
		}
		made := makeData(b)
		if name != "" && !errors.Is(made, unix.ENOSPC) {
			t.Errorf("make, failing %s: %v", name, made)
		}
		if err := errors.Join(makeData(b), removeData(b)); err != nil {
			if name == "" || !errors.Is(err, unix.ENOSPC) {
				t.Errorf("failing %s: %v", name, err)
			}
			if err := removeData(b); err != nil {
				t.Errorf("remove again, failing %s: %v", name, err)
			}
		}
		assertOnlyForgotten(t, b)
		if name == "" {
			return
		}
		if t.Failed() {
			t.Fatal(fmt.Sprint("that was step ", n))
		}
	}
}

// assertOnlyForgotten fails if anything is left but a directory above volumes
// that is not known to be ours, since it was not recorded in time.
func assertOnlyForgotten(t *testing.T, b *base) {
	t.Helper()
	switch got := tree(t, b.root.Name()); got {
	case "":
		assertBookEmpty(t, b)
	case "drwxr-xr-x ns\n", "drwxr-xr-x ns\ndrwxr-xr-x ns/deep\n":
	default:
		t.Errorf("left\n%s", got)
	}
}
