package mount

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"syscall"

	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/fstypes"
	"github.com/podvol/podvol/util/blockingcall"
)

// CauseOf classifies an error: by the cause it carries, by errno, by the end of
// a context, and at last by its text, as mounters that run mount(8) put the
// output there.
func CauseOf(err error) Cause {
	if err == nil {
		return ErrUnknown
	}
	if cause := KnownCause(err); cause != "" {
		return cause
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return ErrTimedOut
	case errors.Is(err, context.Canceled):
		return ErrCanceled
	}
	if _, ok := errors.AsType[*blockingcall.AbandonedError](err); ok {
		return ErrCanceled // ended with a cause of the caller's own
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return causeOfErrno(errno)
	}
	return CauseOfOutput(err.Error())
}

// KnownCause returns the cause that an error has been given, or "". It guesses nothing.
func KnownCause(err error) Cause {
	if cause, ok := errors.AsType[Cause](err); ok {
		return cause
	}
	if caused, ok := errors.AsType[*failure.Caused](err); ok {
		if cause, ok := errors.AsType[Cause](caused.Cause); ok {
			return cause
		}
	}
	return ""
}

// symptom is what a tool prints for a cause: regular expressions, in any case.
type symptom struct {
	cause Cause
	words []string
}

// in compiles what it looks for, as most texts are known by an early symptom.
func (s symptom) in(text string) bool {
	return regexp.MustCompile("(?i)" + strings.Join(s.words, "|")).MatchString(text)
}

// symptoms lists the words of util-linux, nfs-utils, cifs-utils and mount.ceph under
// LC_ALL=C, the telling ones before the vague ones. Where mount(8) itself only
// lists possibilities, the helper's own words have been found before.
func symptoms() []symptom {
	list := func(cause Cause, words ...string) symptom { return symptom{cause, words} }
	return []symptom{
		// Name and network, with any helper.
		list(ErrNameResolution, `failed to resolve server`, `could not resolve address`, `name or service not known`,
			`failed to resolve source`, `temporary failure in name resolution`, `can't get address for`, `dns resolution failed`),
		list(ErrNoLockDaemon, `rpc\.statd is not running`),
		list(ErrVersionUnsupported, `requested nfs version or transport protocol is not supported`, `protocol not supported`,
			`program/version mismatch`, `program not registered`, `nfs (mount )?version \S+ is not supported`,
			`server abruptly closed the connection`, `mount error\(95\)`, `dialect`),
		list(ErrConnectionRefused, `connection refused`, `mount error\(111\)`),
		list(ErrTimedOut, `timed out`, `no mds server is up`, `no route to host`, `network is unreachable`, `host is down`, `mount error\((11|101|110|112|113|115)\)`),
		list(ErrStaleHandle, `stale (nfs )?file handle`),
		// What the server says.
		list(ErrNoSuchExport, `reason given by server: no such file or directory`, `mount error\((2|6)\)`, `mount error 2 =`,
			`mount\.nfs4?: .*no such file or directory`, `failed to fetch volume file`),
		list(ErrAccessDenied, `access denied by server`, `reason given by server: permission denied`, `mount error\((13|126)\)`, `mount error 13 =`,
			`mount\.nfs4?: permission denied`, `mount error 1 = operation not permitted`),
		// What the kernel lacks.
		list(ErrNoFilesystem, `unknown filesystem type`, `filesystem not supported by the system`, `mount error\(19\)`,
			`mount\.nfs4?: no such device`, `modprobe: .*not found`, `not configured in kernel`),
		// Faults of the node.
		list(ErrNotMounted, `: not mounted`, `no mount point specified`, `mount point not mounted or bad option`),
		list(ErrNoTarget, `mount point .*does not exist`, `symbolic link to nowhere`),
		list(ErrKindMismatch, `mount point .*is not a directory`, `mount spec .* or point .* is not a directory`,
			`mount\(2\) system call failed: not a directory`), // the mount point was found to exist before
		list(ErrNoSource, `special device .* does not exist`, `is not a block device`, `no medium found`, `can't find (uuid|label)=`),
		list(ErrBusy, `already mounted`, `target is busy`, `is busy`, `device or resource busy`, `mount error\(16\)`),
		list(ErrNeedsFsck, `structure needs cleaning`, `run fsck`),
		list(ErrReadOnlyDevice, `write-protected`, `read-only file system`, `cannot mount .* read-only`),
		list(ErrIO, `can't read superblock`, `input/output error`),
		list(ErrNotPermitted, `only root can`, `must be superuser`, `permission denied`, `operation not permitted`, `not permitted`),
		list(ErrBadOption, `incorrect mount option`, `unknown mount option`, `unrecognized (mount )?option`, `(unknown|unsupported) parameter`, `(bad|unexpected) value for`,
			`unsupported nfs4? mount option`, `security flavor not supported`, `bad usage`, `mount error\(22\)`, `invalid argument`, `unknown option`, `unsupported option`),
		list(ErrHelperMissing, `might need a /sbin/mount\.`, `missing codepage or helper program`, `need a helper program`),
		list(ErrWrongFilesystem, `wrong fs type`, `bad superblock`),
	}
}

// CauseOfOutput classifies what a tool printed.
func CauseOfOutput(text string) Cause {
	for _, s := range symptoms() {
		if s.in(text) {
			return s.cause
		}
	}
	return ErrUnknown
}

// WithoutHelper is what mount(8)'s list of possibilities means where no helper is
// missing: the options if no device is mounted, else the device's contents.
func WithoutHelper(r Request) Cause {
	if fstypes.WantsHelper(r.FSType) || !strings.HasPrefix(r.Source, "/dev/") {
		return ErrBadOption
	}
	return ErrWrongFilesystem
}

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
