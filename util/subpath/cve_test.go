package subpath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
)

// hostUntouched fails if anything was made beside the volume.
func hostUntouched(t *testing.T, root *os.File) {
	t.Helper()
	host := filepath.Join(filepath.Dir(root.Name()), "host")
	for dir, want := range map[string]string{host: "secrets", filepath.Join(host, "secrets"): "key"} {
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) != 1 || entries[0].Name() != want {
			t.Errorf("%s holds %v, %v, want %s alone", dir, entries, err, want)
		}
		if got := mode(t, dir); got != 0o755 {
			t.Errorf("%s has mode %o", dir, got)
		}
	}
}

// everyWay tries all functions on a path that leads out.
func everyWay(t *testing.T, k kernel, root *os.File, path, element string) {
	t.Helper()
	_, openErr := k.open(root, path)
	_, makeErr := k.openOrMake(t.Context(), root, path)
	for call, err := range map[string]error{
		"Open": openErr, "OpenOrMake": makeErr,
		"MakePoint, directory": k.makePoint(t.Context(), root, path, true), "MakePoint, file": k.makePoint(t.Context(), root, path, false),
	} {
		escape, ok := errors.AsType[*EscapeError](err)
		if !ok || !errors.Is(err, unix.EXDEV) || escape.Path != path || escape.Volume != root.Name() || escape.Element != element {
			t.Errorf("%s(%q) = %#v, want that %q leads out", call, path, err, element)
		}
	}
	hostUntouched(t, root)
}

// CVE-2017-1002101: a container leaves a link in its volume, and another one
// whose subPath names it gets what the link leads to on the host.
func TestCVE20171002101(t *testing.T) {
	for name, scene := range map[string]struct {
		// links are made in the volume; %s in a target is the host's directory.
		links         map[string]string
		path, element string
	}{
		"the subPath is a link to the root of the host": {map[string]string{"link": "/"}, "link", "link"},
		"the subPath is a link to a directory":          {map[string]string{"link": "%s/secrets"}, "link", "link"},
		"the subPath is a link to a file":               {map[string]string{"link": "%s/secrets/key"}, "link", "link"},
		"a directory on the way is a link":              {map[string]string{"link": "%s"}, "link/secrets/key", "link"},
		"deeper in the volume":                          {map[string]string{"a/b/link": "%s"}, "a/b/link/secrets", "a/b/link"},
		"the link leads up":                             {map[string]string{"link": "../host/secrets"}, "link", "link"},
		"the link leads up from below":                  {map[string]string{"a/b/link": "../../../host"}, "a/b/link/secrets", "a/b/link"},
		"the link leads up and in again":                {map[string]string{"link": "../volume/a", "a/x": "."}, "link", "link"},
		"the link leads up through a directory": {
			map[string]string{"a/x": ".", "link": "a/../../host"}, "link", "link"},
		"a link to a link": {map[string]string{"first": "a/second", "a/second": "%s"}, "first/secrets", "a/second"},
		"a link on the way up": {
			map[string]string{"up": "..", "a/up": "../up"}, "a/up/host/secrets/key", "up"},
		"what is missing would be made on the host": {map[string]string{"link": "%s"}, "link/made/by/us", "link"},
		"through the host's processes":              {map[string]string{"link": "/proc/1/root"}, "link/etc", "link"},
		"to what we have open":                      {map[string]string{"link": "/proc/self/fd"}, "link/0", "link"},
		"an absolute name of the volume itself":     {map[string]string{"link": "%s/../volume"}, "link", "link"},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, k kernel) {
				root := newVolume(t)
				host := filepath.Join(filepath.Dir(root.Name()), "host")
				for name, target := range scene.links {
					if rest, ok := cutHost(target); ok {
						target = host + rest
					}
					link(t, root, name, target)
				}
				everyWay(t, k, root, scene.path, scene.element)
			})
		})
	}
}

func cutHost(target string) (string, bool) {
	if len(target) < 2 || target[:2] != "%s" {
		return "", false
	}
	return target[2:], true
}

// CVE-2017-1002102: a container replaces the links or directories of a
// published volume, and the agent acts on the host's files through them.
func TestCVE20171002102(t *testing.T) {
	for name, replace := range map[string]func(t *testing.T, root *os.File, host string){
		"the link to the current version": func(t *testing.T, root *os.File, host string) {
			must(t, os.Remove(in(root, "..data")))
			link(t, root, "..data", host)
		},
		"the link to the current version, relative": func(t *testing.T, root *os.File, _ string) {
			must(t, os.Remove(in(root, "..data")))
			link(t, root, "..data", "../host")
		},
		"the directory of the current version": func(t *testing.T, root *os.File, host string) {
			must(t, os.RemoveAll(in(root, "..2026_01_01")))
			link(t, root, "..2026_01_01", host)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, k kernel) {
				root := newVolume(t)
				touch(t, root, "..2026_01_01/secrets/key")
				link(t, root, "..data", "..2026_01_01")
				link(t, root, "secrets", "..data/secrets")
				before, err := k.open(root, "secrets/key")
				must(t, err)
				before.Close()
				replace(t, root, filepath.Join(filepath.Dir(root.Name()), "host"))
				element := "..data"
				if name == "the directory of the current version" {
					element = "..2026_01_01"
				}
				for _, path := range []string{"secrets/key", "secrets", "..data/secrets/key", "secrets/new"} {
					everyWay(t, k, root, path, element)
				}
			})
		})
	}
}

// exchange swaps two entries of the volume, as a container does.
func exchange(root *os.File, a, b string) error {
	return unix.Renameat2(int(root.Fd()), a, int(root.Fd()), b, unix.RENAME_EXCHANGE)
}

// CVE-2021-25741: a container exchanges a directory for a link after the
// directory was looked at and before it is mounted. Here the exchange comes
// right after the resolution; what is mounted then is what was resolved.
func TestCVE202125741ExchangeBeforeTheMount(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		bothWays(t, func(t *testing.T, k kernel) {
			root := newVolume(t)
			touch(t, root, "dir/marker")
			link(t, root, "link", "../host/secrets")
			target := t.TempDir()
			source, err := k.openOrMake(t.Context(), root, "dir")
			must(t, err)
			defer source.Close()
			must(t, exchange(root, "dir", "link"))
			must(t, unix.Mount(fmt.Sprintf("/proc/self/fd/%d", source.Fd()), target, "", unix.MS_BIND, ""))
			defer unix.Unmount(target, unix.MNT_DETACH)
			if _, err := os.Stat(filepath.Join(target, "marker")); err != nil {
				t.Errorf("the volume's directory is not what was mounted: %v", err)
			}
			if _, err := os.Stat(filepath.Join(target, "key")); err == nil {
				t.Error("the host's directory was mounted")
			}
			everyWay(t, k, root, "dir", "dir")
		})
	})
}

// The exchange comes between any two system calls: at each call to openat2 in
// turn.
func TestCVE202125741ExchangeWhileMaking(t *testing.T) {
	for moment := range 8 {
		root := newVolume(t)
		mkdir(t, root, "dir")
		link(t, root, "link", "../host")
		k, calls := system(), 0
		k.openat2 = func(dir int, path string, how *unix.OpenHow) (int, error) {
			if calls++; calls-1 == moment/2 && moment%2 == 0 {
				must(t, exchange(root, "dir", "link"))
			}
			fd, err := unix.Openat2(dir, path, how)
			if calls-1 == moment/2 && moment%2 == 1 {
				must(t, exchange(root, "dir", "link"))
			}
			return fd, err
		}
		got, err := k.openOrMake(t.Context(), root, "dir/new/below")
		if err != nil && !isEscape(err) {
			t.Errorf("exchanged at moment %d: %v", moment, err)
		}
		if err == nil {
			place := "dir/new/below"
			if _, err := os.Lstat(in(root, "link/new")); err == nil {
				place = "link/new/below"
			}
			sameAs(t, got, in(root, place))
			got.Close()
		}
		hostUntouched(t, root)
	}
}
