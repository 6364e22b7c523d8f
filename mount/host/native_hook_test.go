package host

import (
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/internal/mountapi"
)

// hooked is the kernel with something before each call by which mounts are
// made, named as in its manual page. An error takes the call's place.
type hooked struct {
	kernel mountapi.Kernel
	before func(call string) error
}

// lackingCalls is a kernel that answers some calls with an errno.
func lackingCalls(errno error, calls ...string) hooked {
	return hooked{before: func(call string) error {
		for _, c := range calls {
			if c == call {
				return errno
			}
		}
		return nil
	}}
}

func (h hooked) Fsopen(fstype string) (int, error) {
	if err := h.before("fsopen"); err != nil {
		return -1, err
	}
	return h.kernel.Fsopen(fstype)
}

func (h hooked) Fspick(mount int) (int, error) {
	if err := h.before("fspick"); err != nil {
		return -1, err
	}
	return h.kernel.Fspick(mount)
}

func (h hooked) SetFlag(context int, key string) error {
	if err := h.before("fsconfig"); err != nil {
		return err
	}
	return h.kernel.SetFlag(context, key)
}

func (h hooked) SetString(context int, key, value string) error {
	if err := h.before("fsconfig"); err != nil {
		return err
	}
	return h.kernel.SetString(context, key, value)
}

func (h hooked) Create(context int) error {
	if err := h.before("create"); err != nil {
		return err
	}
	return h.kernel.Create(context)
}

func (h hooked) Reconfigure(context int) error {
	if err := h.before("reconfigure"); err != nil {
		return err
	}
	return h.kernel.Reconfigure(context)
}

func (h hooked) Log(context int) []string { return h.kernel.Log(context) }

func (h hooked) Fsmount(context int, attributes uint64) (int, error) {
	if err := h.before("fsmount"); err != nil {
		return -1, err
	}
	return h.kernel.Fsmount(context, attributes)
}

func (h hooked) OpenTree(dir int, path string, recursive bool) (int, error) {
	if err := h.before("open_tree"); err != nil {
		return -1, err
	}
	return h.kernel.OpenTree(dir, path, recursive)
}

func (h hooked) MoveMount(mount, target int) error {
	if err := h.before("move_mount"); err != nil {
		return err
	}
	return h.kernel.MoveMount(mount, target)
}

func (h hooked) MountSetattr(mount int, recursive bool, attributes unix.MountAttr) error {
	if err := h.before("mount_setattr"); err != nil {
		return err
	}
	return h.kernel.MountSetattr(mount, recursive, attributes)
}

func (h hooked) Mount(source, target, fstype string, flags uintptr, data string) error {
	if err := h.before("mount"); err != nil {
		return err
	}
	return h.kernel.Mount(source, target, fstype, flags, data)
}
