package host_test

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// Where setgroups(2) is denied, as in the namespace of an ordinary user without
// newgidmap(1), ids can be mapped all the same.
func TestIDMapsWhereSetgroupsIsDenied(t *testing.T) {
	const within = "PODVOL_MOUNT_SETGROUPS_DENIED"
	if os.Getenv(within) != "" {
		ids := host.IDMap{UIDs: []host.IDMapping{{Size: 1}}, GIDs: []host.IDMapping{{Size: 1}}}
		space, err := ids.Namespace(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		space.Close()
		return
	}
	nstest.Run(t, func(t *testing.T) {
		child := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestIDMapsWhereSetgroupsIsDenied$")
		child.Env = append(os.Environ(), within+"=1")
		self := []syscall.SysProcIDMap{{Size: 1}}
		child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: self, GidMappings: self}
		if out, err := child.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
