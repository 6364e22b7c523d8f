package mounttable

import (
	"bytes"
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
	number := 0
	err := chunks(r, func(chunk string) error {
		for line := range strings.SplitSeq(chunk, "\n") {
			if number++; line == "" {
				continue
			}
			l, err := parseMountinfoLine(line)
			if err != nil {
				return fmt.Errorf("mountinfo line %d: %w", number, err)
			}
			l.Options, l.SuperOptions = splitShown(l.own), splitShown(l.super)
			entries = append(entries, l.Entry)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return entries, nil
}

// chunks reads r in pieces of whole lines, without the last one's newline.
func chunks(r io.Reader, use func(chunk string) error) error {
	buffer, filled := make([]byte, 64<<10), 0
	for {
		n, err := r.Read(buffer[filled:])
		filled += n
		switch {
		case err == nil && len(buffer)-filled > 8<<10:
			continue // the kernel hands out a page at a time
		case err != nil && !errors.Is(err, io.EOF):
			return err
		case err != nil:
			return use(string(buffer[:filled]))
		}
		end := bytes.LastIndexByte(buffer[:filled], '\n')
		if end < 0 {
			buffer = append(buffer, make([]byte, len(buffer))...)
			continue
		}
		if err := use(string(buffer[:end])); err != nil {
			return err
		}
		filled = copy(buffer, buffer[end+1:filled])
	}
}

// infoLine is a line of mountinfo. Its options are not split yet.
type infoLine struct {
	mount.Entry
	own, super string
}

// parseMountinfoLine reads
//
//	36 35 98:0 /root /target ro,noatime shared:1 master:2 - ext4 /dev/sda1 rw,errors=continue
//
// where any number of optional fields stands before the lone dash. The strings are
// parts of the line.
func parseMountinfoLine(line string) (l infoLine, err error) {
	left, right, ok := strings.Cut(line, " - ")
	if !ok {
		return l, errors.New("no separator")
	}
	var before [6]string
	fields := 0
	for field := range strings.SplitSeq(left, " ") {
		if fields < len(before) {
			before[fields] = field
		} else {
			l.Propagation = append(l.Propagation, field)
		}
		fields++
	}
	// The source may be empty, and old kernels left spaces in the last field.
	fstype, right, _ := strings.Cut(right, " ")
	source, super, ok := strings.Cut(right, " ")
	if fields < len(before) || !ok {
		return l, errors.New("too few fields")
	}
	l.Root, l.Target, l.own = Unescape(before[3]), Unescape(before[4]), before[5]
	l.FSType, l.Source, l.super = Unescape(fstype), Unescape(source), super
	if l.ID, err = strconv.Atoi(before[0]); err != nil {
		return l, fmt.Errorf("mount id: %w", err)
	}
	if l.ParentID, err = strconv.Atoi(before[1]); err != nil {
		return l, fmt.Errorf("parent id: %w", err)
	}
	l.Device, err = parseDevice(before[2])
	return l, err
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
