package host

import (
	"errors"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
)

func TestExplainDenial(t *testing.T) {
	const (
		initial = "         0          0 4294967295\n"
		user    = "         0      65534          1\n"
		full    = "Name:\tx\nCapEff:\t000001ffffffffff\nCapBnd:\t000001ffffffffff\n"
		none    = "Name:\tx\nCapEff:\t0000000000000000\nCapBnd:\t000001ffffffffff\n"
	)
	closed := &os.PathError{Op: "open", Path: "/closed", Err: unix.EACCES}
	for name, tc := range map[string]struct {
		status, ids string
		e           mount.Error
		capability  string
		also        []mount.Cause
	}{
		"no capability":                         {none, initial, mount.Error{Err: unix.EPERM}, "CAP_SYS_ADMIN", nil},
		"none in a user namespace":              {none, user, mount.Error{Err: unix.EPERM}, "CAP_SYS_ADMIN", nil},
		"all in a user namespace":               {full, user, mount.Error{Err: unix.EPERM}, "", []mount.Cause{mount.ErrUserNamespace}},
		"all":                                   {full, initial, mount.Error{Err: unix.EPERM}, "", []mount.Cause{mount.ErrSecurityPolicy}},
		"all, of a server":                      {full, initial, mount.Error{Err: unix.EPERM, FSType: "nfs4"}, "", nil},
		"all, by a helper":                      {full, initial, mount.Error{Err: errors.New("exit status 32"), Command: "mount"}, "", nil},
		"none, by a helper":                     {none, initial, mount.Error{Err: errors.New("exit status 32"), Command: "mount"}, "CAP_SYS_ADMIN", nil},
		"a closed directory":                    {none, initial, mount.Error{Err: closed}, "CAP_DAC_READ_SEARCH", nil},
		"a closed directory, for a server root": {full, initial, mount.Error{Err: closed}, "", nil},
		"known to be locked":                    {none, user, mount.Error{Err: unix.EINVAL, Also: []mount.Cause{mount.ErrLocked}}, "", []mount.Cause{mount.ErrLocked}},
		"explained by the kernel":               {full, user, mount.Error{Err: unix.EPERM, Kernel: "VFS: Mount too revealing"}, "", nil},
		"worked out from another errno":         {full, initial, mount.Error{Err: unix.EINVAL}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := parsePrivileges(tc.status, tc.ids)
			if err != nil {
				t.Fatal(err)
			}
			e := tc.e
			e.Cause = mount.ErrNotPermitted
			p.explainDenial(&e)
			if e.Capability != tc.capability || !slices.Equal(e.Also, tc.also) {
				t.Errorf("capability %q, also %q; want %q, %q", e.Capability, e.Also, tc.capability, tc.also)
			}
		})
	}
	if _, err := parsePrivileges("Name:\tx\n", initial); err == nil {
		t.Error("a status without capabilities is taken for one")
	}
}
