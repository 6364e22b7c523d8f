package nodebundle

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
)

func TestMountinfoHasNoSecrets(t *testing.T) {
	for _, e := range []mount.Entry{
		{Source: "//user:hunter2@server/share", FSType: "cifs", Target: "/mnt/a b", Root: "/", SuperOptions: []string{"rw", "username=me", "password=hunter2"}},
		{Source: "https://key:hunter2@bucket/", FSType: "fuse.s3fs", Target: "/x\n1 1 0:1", Root: "/", Options: []string{"rw", "passwd=hunter2"}},
		{Source: "mon:/", FSType: "ceph", Target: "/c", Root: "/", SuperOptions: []string{"name=admin", "secret=hunter2"}},
	} {
		line := mountinfoLine(e)
		if strings.Contains(line, "hunter2") || strings.Contains(line, "\n") {
			t.Errorf("%q", line)
		}
	}
	e := mount.Entry{ID: 5, ParentID: 1, Device: unix.Mkdev(8, 2), Root: "/a", Target: "/b c", Source: "/dev/sda2", FSType: "ext4", Options: []string{"rw", "relatime"}, SuperOptions: []string{"rw"}, Propagation: []string{"shared:1"}}
	if got, want := mountinfoLine(e), `5 1 8:2 /a /b\040c rw,relatime shared:1 - ext4 /dev/sda2 rw`; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
