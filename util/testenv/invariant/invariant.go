// Package invariant says what holds below a root directory at any time: while a
// node runs, after it was killed at any moment, after any of its system calls has
// failed, and after a power cut. It is for tests only.
package invariant

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/journal"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Violations returns an error that names everything wrong below root. The files are
// those that were acknowledged, by path, each with its content. Wrong is:
//
//   - a record that cannot be read;
//   - a mount below pods/ without a record, so that nothing would unmount it, and
//     a second mount in one place;
//   - a pod's directory without a record, so that nothing would remove it;
//   - a file that is gone, or has another content.
//
// It reads the disk and the table only, and may be called at any time at which no
// record is being written. Nothing has been done below a root in which there is no
// directory of records or of pods; a root that is no directory is an error.
func Violations(root string, table mount.Table, files map[string]string) error {
	if _, err := os.ReadDir(root); err != nil { // else a wrong path would never have violations
		return fmt.Errorf("there is no root directory to look at: %w", err)
	}
	records, err := Records(root)
	return errors.Join(err, checkMounts(root, table, records), checkPods(root, records), CheckFiles(files))
}

// Records returns the keys of the records below root. Damage is an error, beside
// the keys that can be read.
func Records(root string) (keys []string, err error) {
	held, damaged, err := journal.Read(filepath.Join(volumemanager.StateDir(root), "records"))
	if err != nil {
		return nil, err
	}
	for _, damage := range damaged {
		err = errors.Join(err, fmt.Errorf("the records are damaged: %v", damage))
	}
	for _, entry := range held {
		keys = append(keys, entry.Key)
	}
	return keys, err
}

// Mounted returns the targets of the mounts below root, in the table's order.
func Mounted(root string, table mount.Table) (targets []string, err error) {
	entries, err := table.All()
	for _, e := range entries {
		if pathin.Strictly(filepath.Clean(root), e.Target) {
			targets = append(targets, e.Target)
		}
	}
	return targets, err
}

func checkMounts(root string, table mount.Table, records []string) error {
	targets, err := Mounted(root, table)
	errs := []error{err}
	seen := make(map[string]bool)
	for _, target := range targets {
		if seen[target] {
			errs = append(errs, fmt.Errorf("%s is mounted twice", target))
		}
		seen[target] = true
		path, ok := pathin.Cut(filepath.Join(root, "pods"), target)
		if ok && path != "" && !slices.ContainsFunc(records, func(key string) bool { return isOf(path, key) }) {
			errs = append(errs, fmt.Errorf("%s is mounted without a record; there are those of %v", target, records))
		}
	}
	return errors.Join(errs...)
}

// isOf reports whether a mount, by its path below pods/, is that of the volume
// with this record, or shows a part of it.
func isOf(path, key string) bool {
	pod, rest, _ := strings.Cut(path, "/")
	if part, ok := strings.CutPrefix(rest, "volume-subpaths/"); ok {
		spec, _, _ := strings.Cut(part, "/")
		return strings.HasPrefix(key, pod+"/") && strings.HasSuffix(key, "/"+spec)
	}
	return key == pod+"/"+strings.TrimPrefix(rest, "volumes/")
}

func checkPods(root string, records []string) error {
	pods, err := os.ReadDir(filepath.Join(root, "pods"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, pod := range pods {
		// A record of what was removed, and may be back after a power cut, has more in
		// front of the pod.
		if !slices.ContainsFunc(records, func(key string) bool { return strings.Contains("/"+key, "/"+pod.Name()+"/") }) {
			errs = append(errs, fmt.Errorf("pods/%s is there, and no record knows it; the records are %v", pod.Name(), records))
		}
	}
	return errors.Join(errs...)
}

// CheckFiles returns an error that names each file, by path, whose content is not
// the given one, or that cannot be read.
func CheckFiles(files map[string]string) error {
	var errs []error
	for path, want := range files {
		got, err := os.ReadFile(path)
		if err == nil && string(got) != want {
			err = fmt.Errorf("%s has %q, want %q", path, got, want)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
