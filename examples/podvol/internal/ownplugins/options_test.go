package ownplugins

import (
	"slices"
	"testing"

	"github.com/spf13/pflag"
)

// A process that podvol starts has the flags of its own.
func TestArgsAreTheFlagsAgain(t *testing.T) {
	given := []string{"--nfs-policy", "p", "--image-layout", "a", "--image-layout", "b", "--registry-config", "c", "--insecure-registry", "r:5000", "--insecure-registry", "s",
		"--csi-driver", "d=/s", "--csi-registry", "/r"}
	var first, again Options
	for _, o := range []*Options{&first, &again} {
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.Add(flags, nil)
		if err := flags.Parse(given); err != nil {
			t.Fatal(err)
		}
		if given = o.Args(); len(given) != 16 {
			t.Errorf("%q", given)
		}
	}
	if !slices.Equal(first.plainHTTP, again.plainHTTP) || first.credentials != "c" {
		t.Errorf("%+v, then %+v", first, again)
	}
}
