package userns

import (
	"bufio"
	"io"
	"slices"
	"strings"
)

// maxRanges is how many lines the kernel takes for one map, less one for the
// user's own id; user_namespaces(7).
const maxRanges = 339

// Subordinate reads the format of /etc/subuid and /etc/subgid, "who:first:count",
// and returns the map of a namespace in which 0 is the user's own id and 1 and up
// are the ids that it was given there. It has one range, its own, if it was given
// none. who are the user's name and its id in decimal; both files name users,
// also for groups. Lines that are not of this format, and comments, are passed
// over as newuidmap(1) does.
func Subordinate(r io.Reader, own uint32, who ...string) (IDs, error) {
	ids := IDs{{Inside: 0, Outside: own, Size: 1}}
	next := uint32(1)
	lines := bufio.NewScanner(r)
	for lines.Scan() && len(ids) <= maxRanges {
		fields := strings.Split(strings.TrimSpace(lines.Text()), ":")
		if !slices.Contains(who, fields[0]) {
			continue
		}
		numbers, err := parseNumbers(fields[1:], 2)
		if err != nil {
			continue
		}
		first, count := numbers[0], numbers[1]
		// Ids are never all ones, and no two of a map may be the same.
		count = min(count, ^uint32(0)-first, ^uint32(0)-next)
		if count == 0 || ids.Overlaps(first, count) {
			continue
		}
		ids = append(ids, Range{Inside: next, Outside: first, Size: count})
		next += count
	}
	return ids, lines.Err()
}

// Overlaps reports whether any of count ids outside the namespace, from first on, is among them.
func (ids IDs) Overlaps(first, count uint32) bool {
	return slices.ContainsFunc(ids, func(r Range) bool {
		return uint64(first) < uint64(r.Outside)+uint64(r.Size) && uint64(r.Outside) < uint64(first)+uint64(count)
	})
}
