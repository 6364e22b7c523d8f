package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// needsCommand says why a request needs mount(8), or nothing where the kernel
// can carry it out alone.
func (c Config) needsCommand(r Request, o parsedOptions, flags []string) string {
	switch {
	case len(flags) > 0:
		return "flags of mount(8) were given"
	case len(o.Command) > 0:
		name, _, _ := strings.Cut(o.Command[0], "=")
		return fmt.Sprintf("the option %s is one that mount(8) carries out", name)
	case o.onlyPropagation(r), o.Bind:
		return ""
	}
	return c.typeNeedsCommand(r, o)
}

func (c Config) typeNeedsCommand(r Request, o parsedOptions) string {
	switch {
	case r.FSType == "" && o.Remount:
		return "" // the mount table knows the type
	case r.FSType == "", r.FSType == "auto", r.FSType == "none", strings.Contains(r.FSType, ","):
		return "no file system type was given, and the kernel does not find it out"
	case isTag(r.Source):
		return fmt.Sprintf("the source %s has to be searched for", r.Source)
	case family(r.FSType) == "nfs":
		return needsNFSHelper(r, o)
	case wantsHelper(r.FSType):
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

// isPseudo tells types that have no helper anywhere, so that nobody need look.
func isPseudo(fstype string) bool {
	switch fstype {
	case "tmpfs", "ramfs", "hugetlbfs", "proc", "sysfs", "devtmpfs", "devpts", "mqueue", "cgroup", "cgroup2", "bpf", "debugfs", "tracefs", "securityfs":
		return true
	}
	return false
}

// choose decides between system calls and mount(8) for a request, or refuses it. A remount
// without a type is that of what is mounted.
func (m *HostMounter) choose(ctx context.Context, r Request, o parsedOptions, flags []string) (native bool, err error) {
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
		return false, &causedError{ErrNeedsCommand, errors.New(why)}
	}
	return why == "", nil
}

// typeAt returns the type of what is mounted at target; what is not mounted has
// none.
func (m *HostMounter) typeAt(ctx context.Context, target string) (string, error) {
	fstypes := make(chan string, 1)
	err := m.calls.Do(ctx, callKey{target, RungNone}, func() error {
		e, _, err := m.table.At(target)
		fstypes <- e.FSType
		return err
	})
	if err != nil {
		return "", err
	}
	return <-fstypes, nil
}
