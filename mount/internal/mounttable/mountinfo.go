package mounttable

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mountopt"
)

// ParseMountinfo reads a table in the format of /proc/<pid>/mountinfo
// (proc_pid_mountinfo(5)), oldest mount first.
func ParseMountinfo(r io.Reader) ([]mount.Entry, error) {
	var entries []mount.Entry
	lines := bufio.NewReader(r)
	for number := 1; ; number++ {
		line, err := lines.ReadString('\n')
		if line = strings.TrimSuffix(line, "\n"); line != "" {
			entry, parseErr := parseMountinfoLine(line)
			if parseErr != nil {
				return nil, fmt.Errorf("mountinfo line %d: %w", number, parseErr)
			}
			entries = append(entries, entry)
		}
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// parseMountinfoLine reads
//
//	36 35 98:0 /root /target ro,noatime shared:1 master:2 - ext4 /dev/sda1 rw,errors=continue
//
// where any number of optional fields stands before the lone dash.
func parseMountinfoLine(line string) (mount.Entry, error) {
	left, right, ok := strings.Cut(line, " - ")
	if !ok {
		return mount.Entry{}, errors.New("no separator")
	}
	before := strings.Split(left, " ")
	// The source may be empty, and old kernels left spaces in the last field.
	after := strings.SplitN(right, " ", 3)
	if len(before) < 6 || len(after) < 3 {
		return mount.Entry{}, fmt.Errorf("%d fields before the separator and %d after it are too few", len(before), len(after))
	}
	e := mount.Entry{
		Root:         Unescape(before[3]),
		Target:       Unescape(before[4]),
		Options:      splitShown(before[5]),
		Propagation:  before[6:],
		FSType:       Unescape(after[0]),
		Source:       Unescape(after[1]),
		SuperOptions: splitShown(after[2]),
	}
	if len(e.Propagation) == 0 {
		e.Propagation = nil
	}
	var err error
	if e.ID, err = strconv.Atoi(before[0]); err != nil {
		return mount.Entry{}, fmt.Errorf("mount id: %w", err)
	}
	if e.ParentID, err = strconv.Atoi(before[1]); err != nil {
		return mount.Entry{}, fmt.Errorf("parent id: %w", err)
	}
	e.Device, err = parseDevice(before[2])
	return e, err
}

func parseDevice(s string) (uint64, error) {
	majorText, minorText, ok := strings.Cut(s, ":")
	if !ok {
		return 0, fmt.Errorf("device %q is not major:minor", s)
	}
	major, err := strconv.ParseUint(majorText, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("device: %w", err)
	}
	minor, err := strconv.ParseUint(minorText, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("device: %w", err)
	}
	return unix.Mkdev(uint32(major), uint32(minor)), nil
}

// splitShown splits a comma-separated list of options as the kernel shows it.
func splitShown(list string) []string {
	if list == "" {
		return nil
	}
	options := mountopt.Split(list)
	for i, o := range options {
		options[i] = Unescape(o)
	}
	return options
}

// Unescape undoes the kernel's \ooo escapes (space, tab, newline, backslash
// and hash).
func Unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
