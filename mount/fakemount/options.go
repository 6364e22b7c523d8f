package fakemount

import (
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/mountopt"
)

// fakeOptions are the options of a request.
type fakeOptions struct {
	mountopt.Options
	// shown are the options of Data that are not sensitive.
	shown []string
}

// parseFakeOptions refuses what the fake cannot do.
func parseFakeOptions(r mount.Request) (fakeOptions, error) {
	o := fakeOptions{
		Options: mountopt.Parse(slices.Concat(r.Options, r.Sensitive)...),
		shown:   mountopt.Parse(r.Options...).Data,
	}
	for _, flag := range o.Propagation {
		if flag&unix.MS_PRIVATE == 0 {
			return o, badOption("all mounts of the fake are private")
		}
	}
	if slices.Contains(o.Command, "move") {
		return o, badOption("the fake does not move mounts")
	}
	if o.Bind && len(o.Data) > 0 {
		return o, badOption("options of a file system cannot be set by a bind mount")
	}
	return o, nil
}

// badOption is an EINVAL that says more.
func badOption(reason string) error {
	return failure.Of(mount.ErrBadOption, &fakeError{reason, unix.EINVAL})
}

// fakeError is an errno with the reason for it.
type fakeError struct {
	reason string
	errno  unix.Errno
}

func (e *fakeError) Error() string { return e.reason + ": " + e.errno.Error() }

func (e *fakeError) Unwrap() error { return e.errno }

// flagName is a flag and its word in mountinfo.
type flagName struct {
	on   bool
	name string
}

// flagNames lists a mount's flags as mountinfo does.
func flagNames(flags uintptr) []string {
	has := func(mask uintptr) bool { return flags&mask != 0 }
	return namesOf(flags,
		flagName{has(unix.MS_NOSUID), "nosuid"},
		flagName{has(unix.MS_NODEV), "nodev"},
		flagName{has(unix.MS_NOEXEC), "noexec"},
		flagName{has(unix.MS_NOATIME), "noatime"},
		flagName{has(unix.MS_NODIRATIME), "nodiratime"},
		flagName{!has(unix.MS_NOATIME | unix.MS_STRICTATIME), "relatime"},
		flagName{has(unix.MS_NOSYMFOLLOW), "nosymfollow"},
	)
}

// superFlagNames lists a file system's flags as mountinfo does.
func superFlagNames(flags uintptr) []string {
	return namesOf(flags,
		flagName{flags&unix.MS_SYNCHRONOUS != 0, "sync"},
		flagName{flags&unix.MS_DIRSYNC != 0, "dirsync"},
		flagName{flags&unix.MS_LAZYTIME != 0, "lazytime"},
	)
}

func namesOf(flags uintptr, others ...flagName) []string {
	names := []string{"rw"}
	if flags&unix.MS_RDONLY != 0 {
		names[0] = "ro"
	}
	for _, o := range others {
		if o.on {
			names = append(names, o.name)
		}
	}
	return names
}

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
// refused.
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
				return nil, badOption("an owner that is no number")
			}
			shown = append(shown, option)
		case "nr_inodes", "nr_blocks", "huge", "mpol", "inode32", "inode64", "noswap":
			shown = append(shown, option)
		default:
			return nil, badOption("an option that tmpfs does not know")
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
		return "", badOption("a size that is no number")
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
		return 0, badOption("a mode that is no octal number")
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
