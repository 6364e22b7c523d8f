package selinux_test

import (
	"slices"
	"testing"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/selinux"
)

func TestAddMountOption(t *testing.T) {
	options := make([]string, 1, 4)
	options[0] = "noatime"
	const label = "system_u:object_r:container_file_t:s0:c15,c25"
	got := selinux.AddMountOption(options, label)
	if want := []string{"noatime", `context="` + label + `"`}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if spare := options[:2][1]; spare != "" {
		t.Errorf("the caller's slice was written to: %q", spare)
	}
	if got := selinux.AddMountOption(options, ""); !slices.Equal(got, options) {
		t.Errorf("without a label: %q", got)
	}
	// The commas of a label end no option.
	fake := fakemount.New()
	t.Cleanup(func() {
		if err := fake.Close(); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	if err := fake.Mount("/dev/sda", dir, "ext4", got); err != nil {
		t.Fatal(err)
	}
	e, _, err := fake.Table().At(dir)
	if err != nil || !slices.ContainsFunc(e.SuperOptions, func(o string) bool { return o == `context="`+label+`"` }) {
		t.Errorf("mounted with %q, %v", e.SuperOptions, err)
	}
	if got := selinux.MountOption(e.SuperOptions); got != label {
		t.Errorf("MountOption = %q", got)
	}
	if got := selinux.MountOption([]string{"rw", "context=u:r:t:s0"}); got != "u:r:t:s0" {
		t.Errorf("a label without commas: %q", got)
	}
	if got := selinux.MountOption([]string{"rw", "fscontext=u:r:t:s0"}); got != "" {
		t.Errorf("a file system without one: %q", got)
	}
}

func TestCheckLabel(t *testing.T) {
	for _, good := range []string{"", "s0", "s0:c1,c2", "s0-s15:c0.c1023", "system_u:object_r:container_file_t:s0"} {
		if err := selinux.CheckLabel("level", good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{`s0",exec,context="x`, "s0 c1", "s0\n", "s0=", `s0\`} {
		if err := selinux.CheckLabel("level", bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
