package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	k8smount "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/fstypes"
	"github.com/podvol/podvol/mount/internal/mountopt"
)

// needsCommand says why a request needs mount(8), or nothing where the kernel
// can carry it out alone.
func (c Config) needsCommand(r mount.Request, o mountopt.Options, flags []string) string {
	switch {
	case len(flags) > 0:
		return "flags of mount(8) were given"
	case len(o.Command) > 0:
		name, _, _ := strings.Cut(o.Command[0], "=")
		return fmt.Sprintf("the option %s is one that mount(8) carries out", name)
	case o.OnlyPropagation(r.FSType, r.Source, r.Target), o.Bind:
		return ""
	}
	return c.typeNeedsCommand(r, o)
}

func (c Config) typeNeedsCommand(r mount.Request, o mountopt.Options) string {
	switch {
	case r.FSType == "" && o.Remount:
		return "" // the mount table knows the type
	case r.FSType == "", r.FSType == "auto", r.FSType == "none", strings.Contains(r.FSType, ","):
		return "no file system type was given, and the kernel does not find it out"
	case isTag(r.Source):
		return fmt.Sprintf("the source %s has to be searched for", r.Source)
	case fstypes.Family(r.FSType) == "nfs":
		return needsNFSHelper(r, o)
	case fstypes.WantsHelper(r.FSType):
		return fmt.Sprintf("%s is mounted by a helper program", r.FSType)
	case !isPseudo(r.FSType) && c.hasHelper(r.FSType):
		return fmt.Sprintf("this node has a helper for %s", r.FSType)
	}
	return ""
}

// isTag tells sources that mount(8) searches all devices for.
func isTag(source string) bool {
	name, _, ok := strings.Cut(source, "=")
	switch name {
	case "UUID", "LABEL", "PARTUUID", "PARTLABEL", "ID":
		return ok
	}
	return false
}

// isImage reports whether a source is the image of a disk in a file.
func isImage(source string) bool {
	info, err := os.Stat(source)
	return err == nil && info.Mode().IsRegular()
}

// isPseudo tells types that have no helper anywhere, so that it is not looked for.
func isPseudo(fstype string) bool {
	switch fstype {
	case "tmpfs", "ramfs", "hugetlbfs", "proc", "sysfs", "devtmpfs", "devpts", "mqueue", "cgroup", "cgroup2", "bpf", "debugfs", "tracefs", "securityfs":
		return true
	}
	return false
}

// choose decides between system calls and mount(8) for a request, or refuses it.
// A remount without a type takes the mount's.
func (m *Mounter) choose(ctx context.Context, r mount.Request, o mountopt.Options, flags []string) (native bool, err error) {
	if m.config.Via == ViaCommand {
		return false, nil
	}
	if o.Remount && !o.Bind && r.FSType == "" {
		if r.FSType, err = m.typeAt(ctx, r.Target); err != nil {
			return false, err
		}
	}
	why := m.config.needsCommand(r, o, flags)
	if why != "" && m.config.Via == ViaSystemCalls {
		return false, failure.Of(mount.ErrNeedsCommand, errors.New(why))
	}
	return why == "", nil
}

// typeAt returns the type of the mount at target, or none if there is no mount.
func (m *Mounter) typeAt(ctx context.Context, target string) (string, error) {
	fstypes := make(chan string, 1)
	err := m.calls.Do(ctx, callKey{target, mount.RungNone}, func() error {
		e, _, err := m.table.At(target)
		fstypes <- e.FSType
		return err
	})
	if err != nil {
		return "", err
	}
	return <-fstypes, nil
}

// commandLine is a program to run for a mount.
type commandLine struct {
	name string
	args []string
	// shown is the whole line, sensitive options masked.
	shown string
}

// inScope runs a command in a systemd scope of its own, by the kubelet's command
// line, where that is needed: in this agent's scope, a daemon that the helper
// leaves behind would be killed with the agent's service. systemd-run is looked
// up, not tried.
func (m *Mounter) inScope(ctx context.Context, r mount.Request, line commandLine) commandLine {
	if !m.config.leavesDaemon(r.FSType) || !m.config.hasSystemd() {
		return line
	}
	if _, err := exec.LookPath("systemd-run"); err != nil {
		m.config.Logger.WarnContext(ctx, "mount without a systemd scope: its daemon ends with this agent's service", "target", r.Target, "type", r.FSType, "error", err)
		return line
	}
	var scoped commandLine
	scoped.name, scoped.args, _ = k8smount.AddSystemdScopeSensitive("systemd-run", r.Target, line.name, line.args, "")
	options := scoped.args[:len(scoped.args)-len(line.args)-1] // the arguments before the command itself
	scoped.shown = "systemd-run"
	for _, o := range options {
		scoped.shown += " " + o
	}
	scoped.shown += " " + line.shown
	return scoped
}

// leavesDaemon reports whether a type is served by a daemon that its helper
// starts: FUSE and its relatives, and types with a helper that are not the
// kernel's, such as ntfs by ntfs-3g.
func (c Config) leavesDaemon(fstype string) bool {
	switch fstypes.Family(fstype) {
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
