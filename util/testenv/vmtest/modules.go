package vmtest

import (
	"bytes"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// modulesOf is the tree of one kernel's modules (/lib/modules/<release>) with
// what its tables say.
type modulesOf struct {
	dir     string
	needs   map[string][]string // by file, relative to dir; in the order in which modules.dep gives them
	files   map[string]string   // by module name
	builtin map[string]bool     // by module name
}

func readModules(dir string) (*modulesOf, error) {
	m := &modulesOf{dir: dir, needs: map[string][]string{}, files: map[string]string{}, builtin: map[string]bool{}}
	dep, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, fmt.Errorf("read which modules need which: %w", err)
	}
	for line := range strings.Lines(string(dep)) {
		file, needs, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		m.needs[file] = strings.Fields(needs)
		m.files[moduleName(file)] = file
	}
	builtin, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("read which modules are built in: %w", err)
	}
	for line := range bytes.Lines(builtin) {
		m.builtin[moduleName(strings.TrimSpace(string(line)))] = true
	}
	return m, nil
}

// moduleName is the name of the module in file; the kernel takes - for _.
func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// order returns the files of the named modules and of what they need, in an
// order in which they can be loaded.
func (m *modulesOf) order(names ...string) ([]string, error) {
	var files []string
	add := func(file string) {
		if !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	for _, name := range names {
		if m.builtin[name] {
			continue
		}
		file, ok := m.files[name]
		if !ok {
			return nil, fmt.Errorf("%w: the kernel of %s lacks the module %s", ErrUnavailable, m.dir, name)
		}
		// What is needed by all stands last; each line is complete.
		for _, needed := range slices.Backward(m.needs[file]) {
			add(needed)
		}
		add(file)
	}
	return files, nil
}
