package propagation

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mounttable"
)

// firstPIDNamespace is the PID namespace that the kernel starts with. Its number
// is fixed (PROC_PID_INIT_INO of linux/proc_ns.h).
const firstPIDNamespace = "pid:[4026531836]"

// proc is what /proc tells of this process and of process 1.
type proc struct{ dir string }

// hides says where this process runs if mounts below a mount do not leave it.
func (p proc) hides(holds mount.Entry) Place {
	group := Group(holds)
	isSlave := slices.ContainsFunc(holds.Propagation, isMaster)
	ours, theirs := p.link("self/ns/mnt"), p.link("1/ns/mnt")
	switch {
	case theirs == "" || theirs == ours:
		return p.hidesUnseen(holds, group, isSlave, theirs != "")
	case group != "" && p.hostHas(group):
		return ""
	case !p.sameRoot():
		return Container
	case isSlave && !p.inUserNamespace():
		return Service
	}
	return "" // someone has made a namespace to keep mounts in it
}

// hidesUnseen is for a process that cannot see another mount namespace: because process
// 1 is in its own one, or may not be asked.
func (p proc) hidesUnseen(holds mount.Entry, group string, isSlave, seen bool) Place {
	first := p.link("self/ns/pid") == firstPIDNamespace
	isVolume := holds.Target != "/" && holds.Root != "/"
	isLayer := holds.Target == "/" && holds.FSType == "overlay"
	switch {
	case group != "", seen && first, p.inUserNamespace():
		return ""
	case isSlave, !first && (isVolume || isLayer):
		return Container
	}
	return ""
}

// link reads a namespace; empty: it cannot be seen.
func (p proc) link(name string) string {
	text, err := os.Readlink(filepath.Join(p.dir, name))
	if err != nil {
		return ""
	}
	return text
}

// hostHas reports whether process 1 has a mount in a peer group. If its table cannot
// be read, it counts as having one.
func (p proc) hostHas(group string) bool {
	f, err := os.Open(filepath.Join(p.dir, "1/mountinfo"))
	if err != nil {
		return true
	}
	defer f.Close()
	entries, err := mounttable.ParseMountinfo(f)
	return err != nil || slices.ContainsFunc(entries, func(e mount.Entry) bool { return Group(e) == group })
}

// sameRoot reports whether process 1 has this process's root directory; if that
// cannot be seen, it counts as the same.
func (p proc) sameRoot() bool {
	var ours, theirs unix.Stat_t
	if unix.Stat(filepath.Join(p.dir, "self/root/."), &ours) != nil || unix.Stat(filepath.Join(p.dir, "1/root/."), &theirs) != nil {
		return true
	}
	return ours.Dev == theirs.Dev && ours.Ino == theirs.Ino
}

// inUserNamespace: mounts of another user namespace never leave it.
func (p proc) inUserNamespace() bool {
	text, err := os.ReadFile(filepath.Join(p.dir, "self/uid_map"))
	return err == nil && strings.Join(strings.Fields(string(text)), " ") != "0 0 4294967295"
}
