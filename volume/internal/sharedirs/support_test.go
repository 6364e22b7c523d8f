package sharedirs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// openBase returns an empty base.
func openBase(t testing.TB) *base {
	t.Helper()
	return openBaseAt(t, t.TempDir())
}

func openBaseAt(t testing.TB, dir string) *base {
	t.Helper()
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return newBase(root)
}

func (b *base) path(p string) string { return filepath.Join(b.root.Name(), p) }

func owner(volume string) Owner {
	return Owner{Volume: volume, ClaimUID: types.UID("uid-of-" + volume)}
}

func wish(path, volume string) Request {
	return Request{Path: path, Owner: owner(volume), Claim: "ns/" + volume, Mode: 0o2770, OnDelete: Delete}
}

func mustMake(t *testing.T, b *base, w Request) {
	t.Helper()
	if err := b.make(t.Context(), w); err != nil {
		t.Fatalf("make %+v: %v", w, err)
	}
}

func mustRemove(t *testing.T, b *base, path, volume string) {
	t.Helper()
	if err := b.remove(t.Context(), path, owner(volume), Delete); err != nil {
		t.Fatalf("remove %s of %s: %v", path, volume, err)
	}
}

// caused returns the first error of the package's with this cause.
func caused(err error, cause error) (first *Error, ok bool) {
	each(err, func(e *Error) {
		if !ok && e.Is(cause) {
			first, ok = e, true
		}
	})
	return first, ok
}

// ownerIn is whose the directory of the first error with an owner is.
func ownerIn(err error) (first Owner) {
	each(err, func(e *Error) {
		if first == (Owner{}) {
			first = e.Owner
		}
	})
	return first
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// tree lists what is below a directory, with its mode, without the bookkeeping.
func tree(t testing.TB, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == bookDir {
			return fs.SkipDir
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if rel, _ := filepath.Rel(dir, p); rel != "." {
			fmt.Fprintf(&out, "%v %s\n", info.Mode(), rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// assertBookEmpty fails if the bookkeeping has anything left.
func assertBookEmpty(t testing.TB, b *base) {
	t.Helper()
	for _, d := range []string{"marks", "parents", "staging", "trash"} {
		left, err := os.ReadDir(b.path(filepath.Join(bookDir, d)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) || len(left) > 0 {
			t.Errorf("%s has %v, %v", d, left, err)
		}
	}
}
