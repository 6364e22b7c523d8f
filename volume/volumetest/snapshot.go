package volumetest

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/podvol/podvol/volume/fakehost"
	"golang.org/x/sys/unix"
)

// snapshot describes everything below dir, and dir itself, without following
// links: kind, mode, owner, size, content or target.
func snapshot(t testing.TB, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		found[rel], err = describe(path, entry)
		return err
	})
	if err != nil {
		t.Errorf("looking at %s: %v", dir, err)
	}
	return found
}

func describe(path string, entry fs.DirEntry) (string, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return "", err
	}
	text := fmt.Sprintf("mode %o owner %d:%d", st.Mode, st.Uid, st.Gid)
	switch {
	case entry.Type() == fs.ModeSymlink:
		target, err := os.Readlink(path)
		return text + " -> " + target, err
	case entry.Type().IsRegular():
		content, err := os.ReadFile(path)
		return fmt.Sprintf("%s %q", text, content), err
	}
	return text, nil
}

func assertSame(t testing.TB, what string, before, after map[string]string) {
	t.Helper()
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("%s changed (-before +after):\n%s", what, diff)
	}
}

// assertKept is assertSame but for what is new.
func assertKept(t testing.TB, what string, before, after map[string]string) {
	t.Helper()
	maps.DeleteFunc(after, func(name, _ string) bool {
		_, old := before[name]
		return !old
	})
	assertSame(t, what, before, after)
}

// mounterCalls are all calls of the host's mounter.
func mounterCalls(h *fakehost.Host) []fmt.Stringer {
	var calls []fmt.Stringer
	if m, ok := h.GetMounter().(faultyMounter); ok {
		for _, c := range m.Calls() {
			calls = append(calls, c)
		}
	}
	return calls
}
