package openiscsi_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/iscsi/internal/openiscsi"
)

func TestTwoDisksBehindOneNumberAreRefused(t *testing.T) {
	n := newNode(t)
	n.ids["10.0.0.1 0"], n.ids["10.0.0.2 0"] = "naa.6001", "naa.6002"
	if _, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1", "10.0.0.2"), nil); !errors.Is(err, openiscsi.ErrNotOneDisk) {
		t.Errorf("Login = %v", err)
	}
}

func TestADiskThatNeverAppears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		begin := time.Now()
		_, _, err := n.initiator.Login(t.Context(), lun(9, "10.0.0.1"), nil)
		if took := time.Since(begin); !errors.Is(err, openiscsi.ErrNoDisk) || took < 30*time.Second || took > 31*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
		n.must(n.initiator.Logout(t.Context(), lun(9, "10.0.0.1")))
		if n.called("--logout") != 1 {
			t.Error("the session is left")
		}
	})
}

func TestADiskInUseStays(t *testing.T) {
	n := newNode(t)
	n.ids["10.0.0.1 0"] = "naa.6001"
	d, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1"), nil)
	n.must(err)
	n.initiator.Replace(func(string) (string, error) { return "8:1", nil }, func(path, value string) error {
		if strings.HasSuffix(path, "/delete") {
			return unix.EBUSY
		}
		return n.put(path, value)
	})
	if err := n.initiator.Logout(t.Context(), lun(0, "10.0.0.1")); !errors.Is(err, unix.EBUSY) {
		t.Errorf("Logout = %v", err)
	}
	if found, err := n.initiator.Find(t.Context(), lun(0, "10.0.0.1")); err != nil || found.Path != d.Path || n.called("--logout") > 0 {
		t.Errorf("the disk is %+v, %v", found, err)
	}
}

// Only a disk that is certainly dead is removed unopened.
func TestADiskThatCannotBeOpened(t *testing.T) {
	for errno, removed := range map[unix.Errno]bool{unix.EIO: true, unix.ENXIO: true, unix.EBUSY: false, unix.EMFILE: false, unix.EPERM: false, unix.ENOENT: false} {
		n := newNode(t)
		n.ids["10.0.0.1 0"] = "naa.6001"
		_, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1"), nil)
		n.must(err)
		n.initiator.ReplaceOpen(func(string) (int, error) { return -1, errno })
		err = n.initiator.Logout(t.Context(), lun(0, "10.0.0.1"))
		if (err == nil) != removed || err != nil && !errors.Is(err, errno) || (n.called("delete < 1") == 1) != removed || (n.called("--logout") == 1) != removed {
			t.Errorf("%v: Logout = %v, calls %q", errno, err, n.calls)
		}
	}
}

// A target that is away may come back, and a pod has the node of its disk.
func TestADeadDiskThatSomethingHas(t *testing.T) {
	n := newNode(t)
	n.ids["10.0.0.1 0"] = "naa.6001"
	d, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1"), nil)
	n.must(err)
	n.users[filepath.Base(d.Path)] = "pod"
	n.initiator.ReplaceOpen(func(string) (int, error) { return -1, unix.ENXIO })
	if err := n.initiator.Logout(t.Context(), lun(0, "10.0.0.1")); !errors.Is(err, volume.ErrInUse) || n.called("delete < 1") > 0 || n.called("--logout") > 0 {
		t.Errorf("Logout = %v, calls %q", err, n.calls)
	}
	delete(n.users, filepath.Base(d.Path))
	n.must(n.initiator.Logout(t.Context(), lun(0, "10.0.0.1")))
	if n.called("--logout") != 1 {
		t.Errorf("calls: %q", n.calls)
	}
}

// What cannot be read is not taken for absent.
func TestSysfsThatCannotBeRead(t *testing.T) {
	const unit = "sys/devices/platform/host1/session1/target1:0:0/1:0:0:"
	for _, broken := range []string{
		"sys/class/iscsi_session", "sys/class/iscsi_connection", "sys/class/iscsi_session/session1/targetname", "sys/class/iscsi_session/session1/target_id",
		"sys/class/iscsi_connection/connection1:0/persistent_port", unit + "0/block", unit + "1/block", unit + "0/block/sd1x0/holders",
	} {
		n := newNode(t)
		n.ids["10.0.0.1 0"], n.ids["10.0.0.1 1"] = "naa.6001", "naa.6002"
		for number := range 2 {
			_, _, err := n.initiator.Login(t.Context(), lun(number, "10.0.0.1"), nil)
			n.must(err)
		}
		n.must(os.RemoveAll(n.at(broken)), os.Symlink(filepath.Base(broken), n.at(broken))) // ELOOP
		if err := n.initiator.Logout(t.Context(), lun(0, "10.0.0.1")); !errors.Is(err, unix.ELOOP) {
			t.Errorf("%s: Logout = %v", broken, err)
		}
		if n.called("--logout") > 0 || n.called("-o delete") > 0 {
			t.Errorf("%s: calls %q", broken, n.calls)
		}
	}
}

func TestPathsWithoutAnIDAreRefused(t *testing.T) {
	n := newNode(t)
	n.ids["10.0.0.1 0"], n.ids["10.0.0.2 0"] = "", ""
	_, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1"), nil)
	n.must(err)
	if _, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1", "10.0.0.2"), nil); !errors.Is(err, openiscsi.ErrNotOneDisk) {
		t.Errorf("Login = %v", err)
	}
}

func TestUsedElsewhere(t *testing.T) {
	n := newNode(t)
	n.ids["10.0.0.1 0"], n.ids["10.0.0.2 0"], n.ids["10.0.0.3 0"] = "naa.6001", "naa.6001", "naa.6002"
	var d openiscsi.Device
	for _, host := range []string{"10.0.0.3", "10.0.0.2", "10.0.0.1"} {
		var err error
		d, _, err = n.initiator.Login(t.Context(), lun(0, host), nil)
		n.must(err)
	}
	for errno, want := range map[unix.Errno]string{unix.EBUSY: n.at("dev/sd2x0"), unix.EIO: "", unix.EMFILE: ""} {
		var opened []string
		n.initiator.ReplaceOpen(func(path string) (int, error) {
			opened = append(opened, path)
			return -1, errno
		})
		got, _, err := n.initiator.UsedElsewhere(t.Context(), d, n.usedBy)
		if got != want || (err != nil) != (errno == unix.EMFILE) || !slices.Equal(opened, []string{n.at("dev/sd2x0")}) {
			t.Errorf("%v: %q, %v, looked at %q", errno, got, err, opened)
		}
	}
}

// A node of the disk that something has been given, such as a pod, is no mount of it.
func TestAUserThatTheKernelDoesNotKnow(t *testing.T) {
	n := newNode(t)
	n.ids["10.0.0.1 0"], n.ids["10.0.0.2 0"] = "naa.6001", "naa.6001"
	d, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1"), nil)
	n.must(err)
	other, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.2"), nil)
	n.must(err)
	n.initiator.ReplaceOpen(func(path string) (int, error) { return unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	n.users[filepath.Base(d.Path)] = "pod"
	if path, user, err := n.initiator.UsedElsewhere(t.Context(), other, n.usedBy); path != d.Path || user != "pod" || err != nil {
		t.Errorf("UsedElsewhere = %q, %q, %v", path, user, err)
	}
	// Of two paths one goes, and the other stays with its session.
	if err := n.initiator.Logout(t.Context(), lun(0, "10.0.0.1", "10.0.0.2")); !errors.Is(err, volume.ErrInUse) || !strings.Contains(err.Error(), "pod") {
		t.Errorf("Logout = %v", err)
	}
	if n.called("-r 2 --logout") != 1 || n.called("-r 1 --logout") != 0 {
		t.Errorf("calls: %q", n.calls)
	}
	if _, err := n.initiator.Find(t.Context(), lun(0, "10.0.0.1")); err != nil {
		t.Errorf("the disk in use: %v", err)
	}
}

// The file of a device that cannot be looked at is not a missing one.
func TestADeviceThatCannotBeLookedAt(t *testing.T) {
	n := newNode(t)
	n.ids["10.0.0.1 0"] = "naa.6001"
	n.initiator.Replace(func(string) (string, error) { return "", &fs.PathError{Op: "stat", Err: unix.EACCES} }, n.put)
	if _, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1"), nil); !errors.Is(err, unix.EACCES) || errors.Is(err, openiscsi.ErrNoDisk) {
		t.Errorf("Login = %v", err)
	}
}
