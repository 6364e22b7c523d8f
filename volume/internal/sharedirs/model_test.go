package sharedirs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// Whatever is made, deleted, replaced by hand and interrupted, in whatever
// order: no two volumes have one directory, none lies in another, a volume's
// data is there until it is deleted, what is to be kept after a deletion died is
// kept if it is still there, and foreign directories stay as they are.
func TestAnyHistory(t *testing.T) {
	paths := []string{"a", "b", "a/x", "a/y", "a/x/deep", "c/d/e"}
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp("", "provisioned-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		root, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		m := &history{t: r, base: newBase(root), volumes: map[Owner]*life{}, dying: map[Owner]*life{}, kept: map[string]string{}, foreign: map[string]bool{}, begun: map[string]bool{}}
		m.base.kernel = kernel{openat2: rapid.Bool().Draw(r, "openat2"), noReplace: rapid.Bool().Draw(r, "noReplace")}
		r.Repeat(map[string]func(*rapid.T){
			"make": func(r *rapid.T) {
				m.make(rapid.SampledFrom(paths).Draw(r, "path"), owner(fmt.Sprint("pv", rapid.IntRange(0, 4).Draw(r, "volume"))), rapid.IntRange(0, 60).Draw(r, "crash"))
			},
			"remove": func(r *rapid.T) {
				m.remove(rapid.SampledFrom(paths).Draw(r, "path"), owner(fmt.Sprint("pv", rapid.IntRange(0, 4).Draw(r, "volume"))), atLeast(r), rapid.IntRange(0, 40).Draw(r, "crash"))
			},
			"begin to delete one": func(r *rapid.T) {
				if o, l := anyOf(r, m.volumes); l != nil {
					m.remove(l.path, o, atLeast(r), rapid.IntRange(1, 8).Draw(r, "crash"))
				}
			},
			"remove again": func(r *rapid.T) {
				if o, l := anyOf(r, m.dying); l != nil {
					m.remove(l.path, o, atLeast(r), rapid.IntRange(0, 12).Draw(r, "crash"))
				}
			},
			"take the path of one that dies": func(r *rapid.T) {
				if _, l := anyOf(r, m.dying); l != nil && rapid.Bool().Draw(r, "by hand") {
					m.makeForeign(l.path)
				} else if l != nil {
					m.make(l.path, owner(fmt.Sprint("pv", rapid.IntRange(0, 4).Draw(r, "volume"))), 0)
				}
			},
			"foreign": func(r *rapid.T) { m.makeForeign(rapid.SampledFrom(paths).Draw(r, "path")) },
			"":        func(*rapid.T) { m.check() },
		})
	})
}

func atLeast(r *rapid.T) OnDelete { return rapid.SampledFrom(careful()).Draw(r, "at least") }

type history struct {
	t       *rapid.T
	base    *base
	volumes map[Owner]*life   // those that were made and not deleted
	dying   map[Owner]*life   // those whose deletion died
	kept    map[string]string // paths of the data of those that were retained or archived
	foreign map[string]bool
	// begun are paths at which a volume may be that nobody was told of.
	begun map[string]bool
	lives int
}

// life is a volume's directory from when it was made until it is deleted.
type life struct {
	path, data string
	// keep: it is to be kept, whatever is asked for, or was once asked to be.
	keep bool
}

func anyOf(r *rapid.T, lives map[Owner]*life) (Owner, *life) {
	if len(lives) == 0 {
		return Owner{}, nil
	}
	owners := slices.SortedFunc(maps.Keys(lives), func(a, b Owner) int { return strings.Compare(a.Volume, b.Volume) })
	o := rapid.SampledFrom(owners).Draw(r, "of")
	return o, lives[o]
}

// find returns the path of a life's data; empty: it is deleted.
func (m *history) find(data string) (where string) {
	err := filepath.WalkDir(m.base.root.Name(), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "data" || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(p)
		if string(content) == data {
			where, err = filepath.Rel(m.base.root.Name(), p)
		}
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return where
}

// within runs f, which dies at a step; 0: it does not.
func (m *history) within(crash int, f func() error) (err error, died bool) {
	at := new(string)
	if crash > 0 {
		at = m.base.crashAt(crash)
	}
	err = f()
	m.base.step = nil
	return err, *at != ""
}

func (m *history) make(p string, o Owner, crash int) {
	if had := m.volumes[o]; had != nil && had.path != p || m.dying[o] != nil {
		return // a volume has one path, and is made again only once it is deleted
	}
	err, died := m.within(crash, func() error {
		return m.base.make(m.t.Context(), Request{Path: p, Owner: o, Mode: 0o755, OnDelete: Delete})
	})
	had := m.volumes[o] != nil
	if died {
		m.begun[p] = true
	}
	switch {
	case err != nil && had && !died:
		m.t.Fatalf("%v at %s was made, and is no longer found: %v", o, p, err)
	case err != nil || had:
		return
	}
	for other, l := range m.volumes {
		if strings.HasPrefix(p+"/", l.path+"/") || strings.HasPrefix(l.path+"/", p+"/") {
			m.t.Fatalf("%v got %s, but %v has %s", o, p, other, l.path)
		}
	}
	if m.foreign[p] {
		m.t.Fatalf("%v got the foreign %s", o, p)
	}
	file := path.Join(p, "data")
	m.lives++
	l := &life{path: p, data: fmt.Sprint(o.Volume, " ", m.lives)}
	if old, err := os.ReadFile(m.base.path(file)); err == nil { // its own of before
		if !strings.HasPrefix(string(old), o.Volume+" ") || m.kept[string(old)] != file {
			m.t.Fatalf("%v got %s with the data of %s", o, p, old)
		}
		delete(m.kept, string(old))
		l.data = string(old)
	} else if err := os.WriteFile(m.base.path(file), []byte(l.data), 0o600); err != nil {
		m.t.Fatal(err)
	}
	m.volumes[o] = l
}

func (m *history) remove(p string, o Owner, atLeast OnDelete, crash int) {
	l := m.volumes[o]
	fresh := l != nil
	if !fresh {
		l = m.dying[o]
	}
	if l == nil || l.path != p {
		m.within(crash, func() error { return m.base.remove(m.t.Context(), p, o, atLeast) })
		return // refused or not, check sees whether anything was lost
	}
	before := m.find(l.data)
	err, died := m.within(crash, func() error { return m.base.remove(m.t.Context(), p, o, atLeast) })
	after := m.find(l.data)
	if before != "" && after == "" && (atLeast != Delete || fresh && l.keep) {
		m.t.Fatalf("%s of %v was lost, though it was to %s", p, o, atLeast)
	}
	l.keep = l.keep || atLeast != Delete
	delete(m.volumes, o)
	m.dying[o] = l
	switch {
	case died:
		return
	case err == nil:
		delete(m.dying, o)
		if after != "" {
			m.kept[l.data] = after
		}
		if after != "" && (!l.keep || strings.HasPrefix(after, bookDir)) {
			m.t.Fatalf("%s of %v is still at %s after %s", p, o, after, atLeast)
		}
	case fresh:
		m.t.Fatalf("remove %s of %v: %v", p, o, err)
	case !strings.HasPrefix(after, bookDir) && (errors.Is(err, ErrOccupied) || errors.Is(err, ErrReplaced) || errors.Is(err, ErrNested)):
		// Somebody else has taken the path.
	case !errors.Is(err, ErrTrashed):
		m.t.Fatalf("remove %s of %v again, whose data is at %q: %v", p, o, after, err)
	}
}

// makeForeign makes a directory as an administrator does, where nothing is.
func (m *history) makeForeign(p string) {
	full := m.base.path(p)
	if err := os.Mkdir(full, 0o711); err != nil {
		if !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENOENT) {
			m.t.Fatal(err)
		}
		return
	}
	for _, lives := range []map[Owner]*life{m.volumes, m.dying} {
		for _, l := range lives {
			if strings.HasPrefix(p, l.path+"/") { // in a volume it is the volume's
				return
			}
		}
	}
	for path := range m.begun {
		if strings.HasPrefix(p, path+"/") {
			return
		}
	}
	m.foreign[p] = true
}

func (m *history) check() {
	for o, l := range m.volumes {
		if data, err := os.ReadFile(m.base.path(filepath.Join(l.path, "data"))); err != nil || string(data) != l.data {
			m.t.Fatalf("%v has lost its data at %s: %q, %v", o, l.path, data, err)
		}
	}
	for want, p := range m.kept {
		if data, err := os.ReadFile(m.base.path(p)); err != nil || string(data) != want {
			m.t.Fatalf("what was kept at %s is %q, %v", p, data, err)
		}
	}
	for p := range m.foreign {
		if info, err := os.Stat(m.base.path(p)); err != nil || info.Mode().Perm() != 0o711 {
			m.t.Fatalf("the foreign directory %s is %v, %v", p, info, err)
		}
	}
}
