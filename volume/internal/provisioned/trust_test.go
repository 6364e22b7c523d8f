package provisioned

import (
	"errors"
	"os"
	"strings"
	"testing"
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
				exposed, ok := errors.AsType[*ExposedError](err)
				if !ok || exposed.Mode != uint32(mode) || !strings.HasSuffix(exposed.Path, dir) {
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
	if err := b.make(t.Context(), wish("data", "pv1")); !errors.As(err, new(*OccupiedError)) {
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
	foreign, ok := errors.AsType[*ForeignError](checkOwner(dir, b.agent+1))
	if !ok || foreign.Owner != b.agent || foreign.Ours != b.agent+1 || !strings.Contains(foreign.Error(), "not trusted") {
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
		if err := b.make(t.Context(), wish("other", "pv2")); !errors.As(err, &foreign) || foreign.Owner != 4711 {
			t.Errorf("make, with %q: %v", name, err)
		}
		if err := b.remove(t.Context(), "data", owner("pv1"), Delete); !errors.As(err, &foreign) {
			t.Errorf("remove, with %q: %v", name, err)
		}
		if got := tree(t, b.root.Name()); got != "dgrwxrwx--- data\n" {
			t.Errorf("left\n%s", got)
		}
	}
}
