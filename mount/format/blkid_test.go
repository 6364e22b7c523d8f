package format_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// blkid has the last word on a device that looks blank.
func TestBlkidIsAskedAsWell(t *testing.T) {
	onHost(t, func(t *testing.T) {
		d := loopdev.New(t, 64*mib)
		before := content(t, d)
		for _, c := range []struct {
			says   string
			status int
			reason error
			found  string
		}{
			{"TYPE=newfs\nUSAGE=filesystem", 0, format.ErrWrongFilesystem, "newfs (file system by blkid)"},
			{"TYPE=new_member\nUSAGE=raid", 0, format.ErrNotBlank, "new_member (member by blkid)"},
			{"PTTYPE=newtable", 0, format.ErrNotBlank, "newtable (partition table by blkid)"},
			{"", 8, format.ErrNotBlank, "more than one"},
			{"", 4, format.ErrUnreadable, "blkid -p"},
			{"", 139, format.ErrUnreadable, "blkid -p"},
		} {
			dir := t.TempDir()
			script := fmt.Sprintf("#!/bin/sh\nprintf '%%s' '%s'\nexit %d\n", c.says, c.status)
			if err := os.WriteFile(filepath.Join(dir, "blkid"), []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
			f := format.New(format.Config{Mounter: host.New(host.Config{}), ToolDirs: []string{dir, "/usr/sbin", "/sbin"}})
			got, err := f.FormatAndMount(t.Context(), request(d.Path, t.TempDir(), "ext4"))
			if !errors.Is(err, c.reason) || !strings.Contains(err.Error(), c.found) || got.Formatted {
				t.Errorf("blkid says %q, %d: %+v, %v", c.says, c.status, got, err)
			}
		}
		if content(t, d) != before {
			t.Error("the device was changed")
		}
	})
}

func TestWithoutBlkidTheOwnProbeDecides(t *testing.T) {
	onHost(t, func(t *testing.T) {
		testtool.Need(t, "mkfs.ext4")
		for _, blkid := range []string{"", "#!/bin/sh\nexit 1\n"} { // not there; busybox's, which cannot probe
			dir, d := t.TempDir(), loopdev.New(t, 64*mib)
			for _, name := range []string{"mkfs.ext4", "fsck"} {
				if err := os.Symlink("/usr/sbin/"+name, filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			if blkid != "" {
				if err := os.WriteFile(filepath.Join(dir, "blkid"), []byte(blkid), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			f := format.New(format.Config{Mounter: host.New(host.Config{}), ToolDirs: []string{dir}})
			got, err := f.FormatAndMount(t.Context(), request(d.Path, t.TempDir(), "ext4"))
			if err != nil || !got.Formatted {
				t.Errorf("%q: %+v, %v", blkid, got, err)
			}
		}
	})
}
