package userns

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// Range maps Size ids, of which Inside is the first in the namespace, to those
// that begin with Outside in the parent's.
type Range struct{ Inside, Outside, Size uint32 }

// IDs are the ids that a user namespace has, of users or of groups.
type IDs []Range

// Has reports whether an id is mapped.
func (ids IDs) Has(id int64) bool {
	for _, r := range ids {
		if id >= int64(r.Inside) && id < int64(r.Inside)+int64(r.Size) {
			return true
		}
	}
	return false
}

// UIDs and GIDs return the ids of this process's user namespace. The errors come
// from reading /proc/self/uid_map and gid_map.
func UIDs() (IDs, error) { return readFile("/proc/self/uid_map") }

// GIDs: see UIDs.
func GIDs() (IDs, error) { return readFile("/proc/self/gid_map") }

func readFile(path string) (IDs, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ids, err := Parse(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return ids, nil
}

// Parse reads the format of /proc/PID/uid_map: three numbers a line.
func Parse(r io.Reader) (IDs, error) {
	var ids IDs
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		numbers, err := parseNumbers(strings.Fields(lines.Text()), 3)
		if err != nil {
			return nil, fmt.Errorf("line %q: %w", lines.Text(), err)
		}
		ids = append(ids, Range{numbers[0], numbers[1], numbers[2]})
	}
	return ids, lines.Err()
}

// SetgroupsAllowed reports whether processes of this user namespace may change
// their supplementary groups: not where an ordinary user has mapped only its
// own group.
func SetgroupsAllowed() (bool, error) {
	text, err := os.ReadFile("/proc/self/setgroups")
	return strings.TrimSpace(string(text)) != "deny", err
}

func parseNumbers(fields []string, count int) ([]uint32, error) {
	if len(fields) != count {
		return nil, fmt.Errorf("it has %d fields, not %d", len(fields), count)
	}
	numbers := make([]uint32, count)
	for i, field := range fields {
		n, err := strconv.ParseUint(field, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is no id", field)
		}
		numbers[i] = uint32(n)
	}
	return numbers, nil
}
