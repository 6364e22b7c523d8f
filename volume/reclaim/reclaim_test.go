package reclaim

import (
	"errors"
	"strings"
	"testing"
)

func TestDryRunError(t *testing.T) {
	for want, e := range map[string]*DryRunError{
		"dry run: nothing was deleted: s:/e has 0 entries of 0 bytes":                                                                    {Source: "s:/e"},
		`dry run: nothing was deleted: s:/e has 2 entries of 5 bytes ("a", …) and 1 mount point, at which it would stop; set the action`: {Source: "s:/e", Entries: 2, Bytes: 5, First: []string{"a"}, Mounts: 1, Do: "set the action"},
		`dry run: nothing was deleted: s:/e has 1 entry of 1 byte ("x")`:                                                                 {Source: "s:/e", Entries: 1, Bytes: 1, First: []string{"x"}},
		`dry run: nothing was deleted: s:/e has 2 entries of 2 bytes ("a\"", "b") and 2 mount points, at which it would stop`:            {Source: "s:/e", Entries: 2, Bytes: 2, First: []string{`a"`, "b"}, Mounts: 2},
	} {
		if got := e.Error(); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
		if !errors.Is(e, ErrDryRun) {
			t.Errorf("%v does not match ErrDryRun", e)
		}
	}
}

func TestIncompleteErrorCounts(t *testing.T) {
	for done, want := range map[int64]string{0: "after 0 entries: ", 1: "after 1 entry: ", 2: "after 2 entries: "} {
		if got := (&IncompleteError{Done: done, Err: errors.New("why")}).Error(); !strings.Contains(got, want) {
			t.Errorf("%s, want %q in it", got, want)
		}
	}
}
