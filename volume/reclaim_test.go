package volume

import (
	"errors"
	"testing"
)

func TestDryRunError(t *testing.T) {
	for want, e := range map[string]*DryRunError{
		"dry run: nothing was deleted: s:/e has 0 entries of 0 bytes":                                                                       {Source: "s:/e"},
		`dry run: nothing was deleted: s:/e has 2 entries of 5 bytes (["a"], …) and 1 mount points, at which it would stop; set the action`: {Source: "s:/e", Entries: 2, Bytes: 5, First: []string{"a"}, Mounts: 1, Do: "set the action"},
	} {
		if got := e.Error(); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
		if !errors.Is(e, ErrDryRun) {
			t.Errorf("%v does not match ErrDryRun", e)
		}
	}
}
