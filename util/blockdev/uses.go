package blockdev

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Uses says what the kernel has the device in use for, as people read it: "holder
// dm-3", "partition sdb1", "swap", "loop device loop7". Mounts are not among it,
// nor processes that have just opened it: an open with O_EXCL finds those, of
// every mount namespace.
func (d *Device) Uses() []string {
	var uses []string
	for _, name := range d.Holders() {
		uses = append(uses, "holder "+name)
	}
	for _, name := range d.Partitions() {
		uses = append(uses, "partition "+name)
	}
	if d.isSwap() {
		uses = append(uses, "swap")
	}
	return uses
}

// Holders returns the kernel's names of the devices that are stacked on this one:
// device mapper, RAID, caches, and loop devices whose file it is.
func (d *Device) Holders() []string {
	names := entries(filepath.Join(d.described(), "holders"))
	blocks := filepath.Join(d.system.sys(), "block")
	for _, name := range entries(blocks) {
		if file := attribute(blocks, name, "loop/backing_file"); file != "" && d.isAt(file) && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// Partitions returns the kernel's names of the device's partitions.
func (d *Device) Partitions() (names []string) {
	for _, name := range entries(d.described()) {
		if attribute(d.described(), name, "partition") != "" {
			names = append(names, name)
		}
	}
	return names
}

// isSwap reads the table of proc(5), whose first column escapes blanks.
func (d *Device) isSwap() bool {
	f, err := os.Open(filepath.Join(d.system.proc(), "swaps"))
	if err != nil {
		return false
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 0 && strings.HasPrefix(fields[0], "/") && d.isAt(unescape(fields[0])) {
			return true
		}
	}
	return false
}

// unescape undoes the kernel's octal escapes of blanks and backslashes.
func unescape(path string) string {
	for _, c := range []byte{' ', '\t', '\n', '\\'} {
		path = strings.ReplaceAll(path, fmt.Sprintf(`\%03o`, c), string(c))
	}
	return path
}

// entries returns the names in a directory, none where it cannot be read.
func entries(dir string) (names []string) {
	all, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}
