package vmtest_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/vmtest"
)

// What runs in the machine proves the ways round system calls that Linux 6.1
// lacks. With a newer kernel it would pass and prove nothing, so this would fail.
func TestKernelLacksNewCalls(t *testing.T) {
	vmtest.Run(t, func(t *testing.T) {
		for name, number := range map[string]uintptr{
			"fchmodat2 (6.6)": unix.SYS_FCHMODAT2, "statmount (6.8)": unix.SYS_STATMOUNT, "listmount (6.8)": unix.SYS_LISTMOUNT,
		} {
			// No arguments: where the call exists, it says EFAULT, EBADF or EINVAL.
			if _, _, err := unix.Syscall6(number, ^uintptr(0), 0, 0, 0, 0, 0); err != unix.ENOSYS {
				t.Errorf("%s answers %v, want %v", name, err, unix.ENOSYS)
			}
		}
		var st unix.Statx_t
		if err := unix.Statx(unix.AT_FDCWD, "/", 0, unix.STATX_MNT_ID_UNIQUE, &st); err != nil || st.Mask&unix.STATX_MNT_ID_UNIQUE != 0 {
			t.Errorf("statx tells the unique id of a mount (6.8): mask %#x, %v", st.Mask, err)
		}
		const reportMounts = 0x4000 // FAN_REPORT_MNT (6.14)
		fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|reportMounts, 0)
		if err == nil {
			unix.Close(fd)
		}
		if !errors.Is(err, unix.EINVAL) {
			t.Errorf("fanotify_init for mounts answers %v, want %v", err, unix.EINVAL)
		}
	})
}
