package blockdev

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Uses says what the kernel has the device in use for, as people read it: "holder
// dm-3", "partition sdb1", "swap", "loop device loop7". Mounts are not among it,
// nor processes that have just opened it: an open with O_EXCL finds those, of
// every mount namespace.
func (d *Device) Uses() (uses []string, err error) {
	holders, err := d.Holders()
	partitions, perr := d.Partitions()
	swap, serr := d.isSwap()
	if err := errors.Join(err, perr, serr); err != nil {
		return nil, err
	}
	for _, name := range holders {
		uses = append(uses, "holder "+name)
	}
	for _, name := range partitions {
		uses = append(uses, "partition "+name)
	}
	if swap {
		uses = append(uses, "swap")
	}
	return uses, nil
}

// Holders returns the kernel's names of the devices that are stacked on this one:
// device mapper, RAID, caches, and loop devices whose file it is.
func (d *Device) Holders() ([]string, error) {
	names, err := entries(filepath.Join(d.described(), "holders"))
	if err != nil {
		return nil, err
	}
	blocks := filepath.Join(d.system.sys(), "block")
	all, err := entries(blocks)
	for _, name := range all {
		if file := attribute(blocks, name, "loop/backing_file"); file != "" && d.isAt(file) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, err
}

// Partitions returns the kernel's names of the device's partitions.
func (d *Device) Partitions() (names []string, err error) {
	all, err := entries(d.described())
	for _, name := range all {
		if attribute(d.described(), name, "partition") != "" {
			names = append(names, name)
		}
	}
	return names, err
}

// isSwap reads the table of proc(5), whose first column escapes blanks. A kernel without swap
// has none.
func (d *Device) isSwap() (bool, error) {
	f, err := os.Open(filepath.Join(d.system.proc(), "swaps"))
	if err != nil {
		return false, present(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 0 && strings.HasPrefix(fields[0], "/") && d.isAt(unescape(fields[0])) {
			return true, nil
		}
	}
	return false, lines.Err()
}

// unescape undoes the kernel's octal escapes of blanks and backslashes.
func unescape(path string) string {
	for _, c := range []byte{' ', '\t', '\n', '\\'} {
		path = strings.ReplaceAll(path, fmt.Sprintf(`\%03o`, c), string(c))
	}
	return path
}

// entries returns the names in a directory; none: it does not exist. Another error means that
// they are not known.
func entries(dir string) (names []string, err error) {
	all, err := os.ReadDir(dir)
	if err != nil {
		return nil, present(err)
	}
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names, nil
}

// present drops the error of what is not there.
func present(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
