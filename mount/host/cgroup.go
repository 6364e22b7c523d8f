package host

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// daemonCgroup is the cgroup, at the top of the hierarchy, of the daemons that helpers leave
// behind where no systemd gives them a scope. It is made when it is needed. Of what is
// removed, an empty one may be left by the last daemon.
const daemonCgroup = "podvol.mounts"

// cgroupDir is where cgroups of version 2 are mounted; empty: nowhere.
func (c Config) cgroupDir() string {
	dirs := []string{c.CgroupDir}
	if c.CgroupDir == "" {
		dirs = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} // the latter beside version 1
	}
	for _, dir := range dirs {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir
		}
	}
	return ""
}

// inCgroup starts a command in the daemons' cgroup, if it can. In the agent's, its daemon
// would be killed with the agent's service (cgroup.kill). The command is built anew for each
// attempt; none that was not started has done anything.
func (c Config) inCgroup(build func() *exec.Cmd) *exec.Cmd {
	top := c.cgroupDir()
	if top == "" {
		return nil
	}
	home := filepath.Join(top, daemonCgroup)
	for range 3 { // another command's end may remove it meanwhile
		if err := os.Mkdir(home, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil
		}
		dir, err := os.Open(home)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil
		}
		cmd := build()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
		err = cmd.Start()
		dir.Close()
		if err == nil {
			return cmd
		}
		if !errors.Is(err, unix.ENODEV) {
			break
		}
	}
	_ = os.Remove(home) // unless others are in it
	return nil
}

// leaveCgroup removes the daemons' cgroup, unless there are some.
func (c Config) leaveCgroup() {
	if top := c.cgroupDir(); top != "" {
		_ = os.Remove(filepath.Join(top, daemonCgroup))
	}
}
