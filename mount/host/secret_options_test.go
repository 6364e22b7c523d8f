package host

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
)

// An option that is known to carry a secret is sensitive, wherever it was put: it is
// mounted with, and shows in no error.
func TestMountTakesSecretOptionsForSensitive(t *testing.T) {
	const secret = "hunter2hunter2"
	given := []string{"ro", "password=" + secret, "vers=3.0"}
	fake := fakemount.New()
	defer fake.Inject(fakemount.Fault{Match: func(fakemount.Call) bool { return true }, Err: errors.New("refused")})()
	err := mount.Mount(t.Context(), fake, mount.Request{Source: "//server/share", Target: "/mnt", FSType: "cifs", Options: given, Sensitive: []string{"key=" + secret}})
	if err == nil || strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), secret) {
		t.Errorf("err = %v", err)
	}
	calls := fake.Calls()
	if len(calls) != 1 || strings.Contains(calls[0].String(), secret) ||
		!slices.Equal(calls[0].Options, []string{"ro", "vers=3.0"}) || !slices.Equal(calls[0].Sensitive(), []string{"password=" + secret, "key=" + secret}) {
		t.Errorf("calls %v", calls)
	}
	if given[1] != "password="+secret {
		t.Errorf("the caller's options became %q", given)
	}
}
