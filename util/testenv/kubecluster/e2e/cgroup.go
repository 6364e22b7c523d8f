package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// cgroups is where the kernel's hierarchies of cgroups are mounted.
const cgroups = "/sys/fs/cgroup"

// hierarchies returns all mounts of cgroups.
func hierarchies() ([]*mountinfo.Info, error) {
	return mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.FSType != "cgroup" && m.FSType != "cgroup2" || m.Mountpoint != cgroups && filepath.Dir(m.Mountpoint) != cgroups, false
	})
}

// cgroupPrefix comes before the process id of the command in the names of cgroups.
const cgroupPrefix = "podvol-e2e-"

// makeCGroup makes a cgroup for the run in each hierarchy, and returns its name. It
// removes those of commands that were killed.
func makeCGroup() (string, error) {
	name := cgroupPrefix + strconv.Itoa(os.Getpid())
	return name, eachHierarchy(func(mount *mountinfo.Info) error {
		return errors.Join(removeAbandoned(mount.Mountpoint), makeCGroupIn(mount.Mountpoint, name))
	})
}

// removeAbandoned removes the cgroups of commands that do not run any more.
func removeAbandoned(hierarchy string) error {
	found, err := filepath.Glob(filepath.Join(hierarchy, cgroupPrefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range found {
		pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), cgroupPrefix))
		if err == nil && (pid == os.Getpid() || errors.Is(unix.Kill(pid, 0), unix.ESRCH)) {
			if err := removeCGroups(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

func eachHierarchy(do func(*mountinfo.Info) error) error {
	mounts, err := hierarchies()
	if err != nil {
		return err
	}
	if len(mounts) == 0 {
		return fmt.Errorf("no cgroups are mounted at %s", cgroups)
	}
	var all error
	for _, mount := range mounts {
		all = errors.Join(all, do(mount))
	}
	return all
}

// makeCGroupIn makes a cgroup. Processes may enter one of cpuset only when it says where
// they may run.
func makeCGroupIn(parent, name string) error {
	dir := filepath.Join(parent, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		inherited, err := os.ReadFile(filepath.Join(parent, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue // another controller, or the root of version 2
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), inherited, 0); err != nil {
			return err
		}
	}
	return nil
}

// enterCGroup moves this process into a cgroup of the run, which is the root of all
// cgroups that it sees from now on. The caller's goroutine must keep its thread.
func enterCGroup(run, name string) error {
	err := eachHierarchy(func(mount *mountinfo.Info) error {
		parent := filepath.Join(mount.Mountpoint, run)
		return errors.Join(makeCGroupIn(parent, name), moveTo(filepath.Join(parent, name)))
	})
	if err != nil {
		return err
	}
	mounts, err := hierarchies()
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	return mountCGroups(mounts)
}

func moveTo(cgroup string) error {
	return os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte("0"), 0)
}

// mountCGroups mounts the hierarchies anew, with this process' cgroup as their root.
func mountCGroups(mounts []*mountinfo.Info) error {
	if err := mounting("sysfs", "/sys", "sysfs", 0, ""); err != nil { // of the namespace of networks
		return err
	}
	if len(mounts) == 1 && mounts[0].Mountpoint == cgroups {
		return mountVersion2()
	}
	if err := mounting("tmpfs", cgroups, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for _, mount := range mounts {
		if err := os.Mkdir(mount.Mountpoint, 0o755); err != nil {
			return err
		}
		if err := mounting(mount.FSType, mount.Mountpoint, mount.FSType, 0, controllersOf(mount)); err != nil {
			return err
		}
	}
	return nil
}

// controllersOf are the mount's own options, which name its controllers.
func controllersOf(mount *mountinfo.Info) string {
	if mount.FSType == "cgroup2" {
		return ""
	}
	return strings.Join(slices.DeleteFunc(strings.Split(mount.VFSOptions, ","), func(option string) bool { return option == "rw" || option == "ro" }), ",")
}

// mountVersion2 mounts the one hierarchy. Only cgroups without processes hand their
// controllers down, so this process moves into a leaf.
func mountVersion2() error {
	if err := mounting("cgroup2", cgroups, "cgroup2", 0, ""); err != nil {
		return err
	}
	if err := os.Mkdir(cgroups+"/init", 0o755); err != nil {
		return err
	}
	if err := moveTo(cgroups + "/init"); err != nil {
		return err
	}
	available, err := os.ReadFile(cgroups + "/cgroup.controllers")
	if err != nil {
		return err
	}
	var enabled []string
	for controller := range strings.FieldsSeq(string(available)) {
		enabled = append(enabled, "+"+controller)
	}
	return os.WriteFile(cgroups+"/cgroup.subtree_control", []byte(strings.Join(enabled, " ")), 0)
}

// removeCGroup removes the run's cgroup, and those below it, once all its processes have
// ended.
func removeCGroup(name string) error {
	return eachHierarchy(func(mount *mountinfo.Info) error { return removeCGroups(filepath.Join(mount.Mountpoint, name)) })
}

func removeCGroups(top string) error {
	var found []string
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			found = append(found, path)
		}
		return err
	})
	for _, dir := range slices.Backward(found) {
		err = errors.Join(err, unix.Rmdir(dir))
	}
	return err
}
