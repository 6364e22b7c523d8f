package provisioned

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// Whatever is made, deleted, replaced by hand and interrupted, in whatever
// order: no two volumes have one directory, none lies in another, a volume's
// data is there until it is deleted, and foreign directories stay as they are.
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
		m := &history{t: r, base: newBase(root), volumes: map[Owner]string{}, foreign: map[string]bool{}, begun: map[string]bool{}}
		m.base.kernel = kernel{openat2: rapid.Bool().Draw(r, "openat2"), noReplace: rapid.Bool().Draw(r, "noReplace")}
		r.Repeat(map[string]func(*rapid.T){
			"make": func(r *rapid.T) {
				m.make(rapid.SampledFrom(paths).Draw(r, "path"), owner(fmt.Sprint("pv", rapid.IntRange(0, 4).Draw(r, "volume"))), rapid.IntRange(0, 60).Draw(r, "crash"))
			},
			"remove": func(r *rapid.T) {
				m.remove(rapid.SampledFrom(paths).Draw(r, "path"), owner(fmt.Sprint("pv", rapid.IntRange(0, 4).Draw(r, "volume"))), rapid.IntRange(0, 40).Draw(r, "crash"))
			},
			"foreign": func(r *rapid.T) { m.makeForeign(rapid.SampledFrom(paths).Draw(r, "path")) },
			"":        func(*rapid.T) { m.check() },
		})
	})
}

type history struct {
	t       *rapid.T
	base    *base
	volumes map[Owner]string // paths of those that were made and not deleted
	foreign map[string]bool
	// begun are paths at which a volume may be that nobody was told of.
	begun map[string]bool
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
	if had, ok := m.volumes[o]; ok && had != p {
		return // a volume has one path
	}
	err, died := m.within(crash, func() error {
		return m.base.make(m.t.Context(), Wish{Path: p, Owner: o, Mode: 0o755, OnDelete: Delete})
	})
	_, had := m.volumes[o]
	if died {
		m.begun[p] = true
	}
	switch {
	case err != nil && had && !died:
		m.t.Fatalf("%v at %s was made, and is no longer found: %v", o, p, err)
	case err != nil || had:
		return
	}
	for other, path := range m.volumes {
		if strings.HasPrefix(p+"/", path+"/") || strings.HasPrefix(path+"/", p+"/") {
			m.t.Fatalf("%v got %s, but %v has %s", o, p, other, path)
		}
	}
	if m.foreign[p] {
		m.t.Fatalf("%v got the foreign %s", o, p)
	}
	if err := os.WriteFile(m.base.path(path.Join(p, "data")), []byte(o.Volume), 0o600); err != nil {
		m.t.Fatal(err)
	}
	m.volumes[o] = p
}

func (m *history) remove(p string, o Owner, crash int) {
	err, died := m.within(crash, func() error { return m.base.remove(m.t.Context(), p, o, Delete) })
	if m.volumes[o] != p {
		return // refused or not, check sees whether anything was lost
	}
	if died { // half a deletion; it is repeated until it is done
		err = m.base.remove(m.t.Context(), p, o, Delete)
	}
	if err != nil {
		m.t.Fatalf("remove %s of %v: %v", p, o, err)
	}
	delete(m.volumes, o)
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
	for _, path := range m.volumes {
		if strings.HasPrefix(p+"/", path+"/") { // in a volume it is the volume's
			return
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
	for o, p := range m.volumes {
		if data, err := os.ReadFile(m.base.path(filepath.Join(p, "data"))); err != nil || string(data) != o.Volume {
			m.t.Fatalf("%v has lost its data at %s: %q, %v", o, p, data, err)
		}
	}
	for p := range m.foreign {
		if info, err := os.Stat(m.base.path(p)); err != nil || info.Mode().Perm() != 0o711 {
			m.t.Fatalf("the foreign directory %s is %v, %v", p, info, err)
		}
	}
}
