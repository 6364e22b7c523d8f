package mount

import (
	"context"
	"os"
	"os/exec"

	k8smount "k8s.io/mount-utils"
)

// commandLine is a program to run for a mount.
type commandLine struct {
	name string
	args []string
	// shown is the whole line, sensitive options masked.
	shown string
}

// inScope runs a command in a systemd scope of its own, by the kubelet's
// command line, where that is needed: in the scope of this agent, a daemon that
// the helper leaves behind would be killed with the agent's service. Nobody is
// asked whether systemd-run works; it is looked for where it is needed.
func (m *HostMounter) inScope(ctx context.Context, r Request, line commandLine) commandLine {
	if !m.config.leavesDaemon(r.FSType) || !m.config.hasSystemd() {
		return line
	}
	if _, err := exec.LookPath("systemd-run"); err != nil {
		m.config.Logger.WarnContext(ctx, "mount without a systemd scope: its daemon ends with this agent's service", "target", r.Target, "type", r.FSType, "error", err)
		return line
	}
	var scoped commandLine
	scoped.name, scoped.args, _ = k8smount.AddSystemdScopeSensitive("systemd-run", r.Target, line.name, line.args, "")
	options := scoped.args[:len(scoped.args)-len(line.args)-1] // what comes before the command itself
	scoped.shown = "systemd-run"
	for _, o := range options {
		scoped.shown += " " + o
	}
	scoped.shown += " " + line.shown
	return scoped
}

// leavesDaemon reports whether a type is served by a daemon that its helper
// starts: FUSE and its relatives, and what has a helper and is not the
// kernel's, such as ntfs by ntfs-3g.
func (c Config) leavesDaemon(fstype string) bool {
	switch family(fstype) {
	case "fuse", "glusterfs":
		return true
	case "nfs", "cifs", "ceph", "":
		return false
	}
	return c.hasHelper(fstype) && c.kernelLacks(fstype)
}

// hasSystemd reports whether systemd runs this host, as sd_booted(3) does.
func (c Config) hasSystemd() bool {
	dir := c.SystemdDir
	if dir == "" {
		dir = "/run/systemd/system"
	}
	info, err := os.Lstat(dir)
	return err == nil && info.IsDir()
}
