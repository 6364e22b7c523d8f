package mount

import (
	"errors"
	"regexp"
	"strings"
	"syscall"

	"github.com/podvol/podvol/mount/internal/fstypes"
)

// message joins the lines of a file system context's log.
func message(lines []string) string {
	var said []string
	for _, line := range lines {
		if line = bare(line); line != "" {
			said = append(said, line)
		}
	}
	return strings.Join(said, "; ")
}

// bare takes the level off a line of a file system context's log.
func bare(line string) string {
	line = strings.TrimSpace(line)
	for _, level := range []string{"e ", "w ", "i "} {
		if rest, ok := strings.CutPrefix(line, level); ok {
			return rest
		}
	}
	return line
}

// causeOfKernel classifies a failed system call of a mount by its errno and by
// the lines of the file system context's log, and names the option that was
// refused, if one was. An errno that means different things to disks and to
// shares is told apart by the request.
func causeOfKernel(r Request, err error, lines []string) (cause Cause, option string) {
	text := message(lines)
	option = OptionIn(text)
	for _, s := range kernelSymptoms() {
		if s.in(text) {
			return s.cause, ""
		}
	}
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		if option != "" {
			return ErrBadOption, option
		}
		return CauseOf(err), ""
	}
	cause = causeOfMountErrno(r, errno)
	switch errno {
	case syscall.EINVAL, syscall.EOPNOTSUPP, syscall.ERANGE, syscall.E2BIG, syscall.ENOPROTOOPT, syscall.EBADF:
		if option != "" {
			return ErrBadOption, option
		}
	}
	return cause, ""
}

// kernelSymptoms lists words of the kernel's file systems (Linux 5.4 to 6.18)
// that say more than the errno beside them.
func kernelSymptoms() []symptom {
	list := func(cause Cause, words ...string) symptom { return symptom{cause, words} }
	return []symptom{
		list(ErrNotPermitted, `mount too revealing`, `requires cap_`),
		list(ErrNoFilesystem, `nfsv[234]\S* is not compiled into kernel`, `nfs: version unavailable`),
		list(ErrWrongFilesystem, `can't find (an? )?\S+ file ?system`, `invalid superblock magic`, `bad magic number`, `not a valid \S+ file ?system`, `wrong magic`),
		list(ErrReadOnlyDevice, `write[- ]access (is )?unavailable`, `write[- ]protected`, `read-only device`),
		list(ErrNeedsFsck, `structure needs cleaning`, `run (e2|xfs_)?(fsck|repair)`, `corrupt`),
		list(ErrNoSource, `no source specified`, `source not specified`),
	}
}

// isDisk reports whether the request mounts a device.
func isDisk(r Request) bool {
	return strings.HasPrefix(r.Source, "/dev/") && !fstypes.IsShare(r.FSType)
}

// OptionIn finds the option that a message of the kernel or of a helper
// refuses, or returns "". With a value or without, only the name is returned.
func OptionIn(text string) string {
	for _, pattern := range []string{
		// The kernel's parser, with the name in quotes: "Unknown parameter
		// 'x'", "Bad value for 'x'", "Unrecognized mount option "x=1" or
		// missing value"; libfuse: "unknown option(s): `-o x'".
		"(?i)(?:parameter|options?|option\\(s\\)|value for|values? of):? [`'\"‘](?:-o )?([^`'\"’=]+)",
		"(?i)value for [`'\"]?([a-z0-9_.:-]+)[`'\"]? mount option",
		// NFS: "mount option x conflicts with …", "does not match proto= option".
		`(?i)([a-z0-9_]+)= option`,
		`(?i)(?:unsupported nfs4? mount|unknown mount|unrecognized mount|unrecognized|unknown|invalid|unsupported) option:? ([a-z0-9_.-]+)`,
		`(?i)mount option ([a-z0-9_.-]+) (?:conflicts|requires|is|needs)`,
		"(?i)missing [`'\"]([a-z0-9_]+)[`'\"]",
	} {
		if found := regexp.MustCompile(pattern).FindStringSubmatch(text); found != nil {
			return strings.TrimSpace(found[1])
		}
	}
	return ""
}
