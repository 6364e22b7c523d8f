package mount

import (
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fakeFlags are the options of one mount, as opposed to its file system's.
type fakeFlags uint

const (
	flagReadOnly fakeFlags = 1 << iota
	flagNoSUID
	flagNoDev
	flagNoExec
	flagNoATime
	flagNoDirATime
	flagStrictATime
	flagNoSymFollow
)

// flagChange is what one option does to the flags of a mount.
type flagChange struct{ set, clear fakeFlags }

func (c flagChange) apply(flags fakeFlags) fakeFlags { return flags&^c.clear | c.set }

// flagOption says what an option does to the flags of its mount, and whether
// it is such an option.
func flagOption(option string) (flagChange, bool) {
	switch option {
	case "ro":
		return flagChange{set: flagReadOnly}, true
	case "rw":
		return flagChange{clear: flagReadOnly}, true
	case "nosuid":
		return flagChange{set: flagNoSUID}, true
	case "suid":
		return flagChange{clear: flagNoSUID}, true
	case "nodev":
		return flagChange{set: flagNoDev}, true
	case "dev":
		return flagChange{clear: flagNoDev}, true
	case "noexec":
		return flagChange{set: flagNoExec}, true
	case "exec":
		return flagChange{clear: flagNoExec}, true
	case "noatime":
		return flagChange{set: flagNoATime, clear: flagStrictATime}, true
	case "strictatime":
		return flagChange{set: flagStrictATime, clear: flagNoATime}, true
	case "atime", "relatime", "norelatime", "nostrictatime":
		return flagChange{clear: flagNoATime | flagStrictATime}, true
	case "nodiratime":
		return flagChange{set: flagNoDirATime}, true
	case "diratime":
		return flagChange{clear: flagNoDirATime}, true
	case "nosymfollow":
		return flagChange{set: flagNoSymFollow}, true
	case "symfollow":
		return flagChange{clear: flagNoSymFollow}, true
	case "defaults":
		return flagChange{clear: flagReadOnly | flagNoSUID | flagNoDev | flagNoExec}, true
	}
	return flagChange{}, false
}

// names lists the flags as mountinfo does.
func (f fakeFlags) names() []string {
	names := []string{"rw"}
	if f&flagReadOnly != 0 {
		names[0] = "ro"
	}
	add := func(on bool, name string) {
		if on {
			names = append(names, name)
		}
	}
	add(f&flagNoSUID != 0, "nosuid")
	add(f&flagNoDev != 0, "nodev")
	add(f&flagNoExec != 0, "noexec")
	add(f&flagNoATime != 0, "noatime")
	add(f&flagNoDirATime != 0, "nodiratime")
	add(f&(flagNoATime|flagStrictATime) == 0, "relatime")
	add(f&flagNoSymFollow != 0, "nosymfollow")
	return names
}

// fakeOptions are the options of a request, sorted by what they act on.
type fakeOptions struct {
	bind, recursive, remount bool
	flags                    []flagChange
	// super are the file system's own options that may be shown, hidden those
	// that may not.
	super, hidden []string
}

// parseFakeOptions sorts options. It refuses, as EINVAL, what the fake cannot
// do.
func parseFakeOptions(r Request) (fakeOptions, error) {
	var o fakeOptions
	for _, option := range splitFakeOptions(r.Options) {
		if err := o.add(option, &o.super); err != nil {
			return fakeOptions{}, err
		}
	}
	for _, option := range splitFakeOptions(r.Sensitive) {
		if err := o.add(option, &o.hidden); err != nil {
			return fakeOptions{}, err
		}
	}
	return o, nil
}

func splitFakeOptions(options []string) []string {
	var all []string
	for _, o := range options {
		all = append(all, strings.Split(o, ",")...)
	}
	return all
}

func (o *fakeOptions) add(option string, super *[]string) error {
	if change, ok := flagOption(option); ok {
		o.flags = append(o.flags, change)
		return nil
	}
	switch option {
	case "bind":
		o.bind = true
	case "rbind":
		o.bind, o.recursive = true, true
	case "remount":
		o.remount = true
	case "move", "shared", "rshared", "slave", "rslave", "unbindable", "runbindable":
		return unix.EINVAL
	case "", "private", "rprivate", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "owner", "group":
		// Already so, or meant for the command and not for the kernel.
	default:
		if !strings.HasPrefix(option, "x-") && !strings.HasPrefix(option, "X-") && !strings.HasPrefix(option, "comment=") {
			*super = append(*super, option)
		}
	}
	return nil
}

// applyTo returns flags after the options, in their order.
func (o fakeOptions) applyTo(flags fakeFlags) fakeFlags {
	for _, change := range o.flags {
		flags = change.apply(flags)
	}
	return flags
}

// all are the file system's own options, shown or not.
func (o fakeOptions) all() []string { return slices.Concat(o.super, o.hidden) }

// setOptions returns options with the changes applied: an option with a value
// takes the place of the one with the same name.
func setOptions(options, changes []string) []string {
	options = slices.Clone(options)
	for _, change := range changes {
		name, _, _ := strings.Cut(change, "=")
		same := func(o string) bool { n, _, _ := strings.Cut(o, "="); return n == name }
		if i := slices.IndexFunc(options, same); i >= 0 {
			options[i] = change
			continue
		}
		options = append(options, change)
	}
	return options
}

// tmpfsOptions is how tmpfs shows its options; those it does not know are
// EINVAL.
func tmpfsOptions(options []string) ([]string, error) {
	shown := make([]string, 0, len(options))
	for _, option := range options {
		name, value, _ := strings.Cut(option, "=")
		switch name {
		case "size":
			kib, err := tmpfsSize(value)
			if err != nil {
				return nil, err
			}
			shown = append(shown, kib)
		case "mode":
			if _, err := parseMode(value); err != nil {
				return nil, err
			}
			shown = append(shown, option)
		case "uid", "gid":
			if _, err := strconv.ParseUint(value, 10, 32); err != nil {
				return nil, unix.EINVAL
			}
			shown = append(shown, option)
		case "nr_inodes", "nr_blocks", "huge", "mpol", "inode32", "inode64", "noswap", "sync", "dirsync", "lazytime", "mand", "nomand":
			shown = append(shown, option)
		default:
			return nil, unix.EINVAL
		}
	}
	return shown, nil
}

// tmpfsSize is a size, in bytes with k, m or g, in KiB of whole pages; a
// percentage of the memory is left as it is.
func tmpfsSize(value string) (string, error) {
	if strings.HasSuffix(value, "%") {
		return "size=" + value, nil
	}
	digits := strings.TrimRight(value, "kKmMgG")
	bytes, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || len(value)-len(digits) > 1 {
		return "", unix.EINVAL
	}
	switch strings.ToLower(value[len(digits):]) {
	case "k":
		bytes <<= 10
	case "m":
		bytes <<= 20
	case "g":
		bytes <<= 30
	}
	const page = 4096
	return "size=" + strconv.FormatUint((bytes+page-1)/page*page/1024, 10) + "k", nil
}

func parseMode(value string) (uint32, error) {
	mode, err := strconv.ParseUint(value, 8, 32)
	if err != nil {
		return 0, unix.EINVAL
	}
	return uint32(mode) & 0o7777, nil
}

// valueOf is the value of the last option with this name.
func valueOf(options []string, name string) (string, bool) {
	for _, option := range slices.Backward(options) {
		if n, value, ok := strings.Cut(option, "="); ok && n == name {
			return value, true
		}
	}
	return "", false
}
