package format

import (
	"fmt"
	"strings"
)

// Reason is why formatting, checking, mounting or growing failed. Reasons are
// errors and comparable: test for one with errors.Is.
type Reason string

// The reasons.
const (
	// ErrNotBlockDevice: the source is no block device, or does not exist.
	ErrNotBlockDevice Reason = "not a block device"
	// ErrInUse: the device is mounted, stacked upon, or being formatted.
	ErrInUse Reason = "the device is in use"
	// ErrUnreadable: the device's contents could not be read.
	ErrUnreadable Reason = "the device cannot be read"
	// ErrNotBlank: there is something on it that is no file system.
	ErrNotBlank Reason = "the device is neither blank nor a file system"
	// ErrWrongFilesystem: it has another file system than was asked for, and
	// the kernel did not mount it.
	ErrWrongFilesystem Reason = "the device has another file system than was asked for"
	// ErrReadOnly: a blank device cannot be formatted for a read-only mount, or
	// because it is write-protected.
	ErrReadOnly Reason = "a blank device cannot be formatted read-only"
	// ErrToolMissing: the program that is needed is not installed.
	ErrToolMissing Reason = "the program for it is not installed on this node"
	// ErrFormatFailed: the mkfs ran and failed.
	ErrFormatFailed Reason = "making the file system failed"
	// ErrUncorrected: fsck found errors that it does not correct by itself.
	ErrUncorrected Reason = "the file system has errors that fsck could not correct"
	// ErrResizeFailed: the program that grows the file system failed.
	ErrResizeFailed Reason = "growing the file system failed"
	// ErrNotSupported: the file system's type is not one that can be made or
	// grown here.
	ErrNotSupported Reason = "not supported for this file system"
	// ErrCanceled: ctx ended.
	ErrCanceled Reason = "gave up waiting"
)

func (r Reason) Error() string { return string(r) }

// Operations named by [Error].Op.
const (
	OpProbe  = "probe"
	OpFormat = "format"
	OpCheck  = "check"
	OpMount  = "mount"
	OpResize = "resize"
)

// Error is a failure of this package. errors.Is finds its Reason and what it
// wraps: for [OpMount] a *mount.Error with its own cause. It contains no
// sensitive option.
type Error struct {
	// Op is the step that failed, one of the Op constants.
	Op string
	// Device is the device as it was given, and FSType the type asked for.
	Device, FSType string
	// Reason classifies the failure.
	Reason Reason
	// Found is the device's content, where that is the cause.
	Found Content
	// Command is the command line that was run, if any, and Output what it
	// printed, at most 64 KiB.
	Command, Output string
	// Uncertain says that a program was started which goes on, or may yet be:
	// the device may be formatted, checked or grown later.
	Uncertain bool
	// Err is the underlying error, or nil.
	Err error
}

// Error says what failed and why, the device's content, a command's output, and
// what to do about it.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", e.Op, e.Device)
	if e.FSType != "" {
		fmt.Fprintf(&b, " as %s", e.FSType)
	}
	fmt.Fprintf(&b, " failed: %s", e.Reason)
	if !e.Found.Blank() {
		fmt.Fprintf(&b, ": it has %s", e.Found)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.Uncertain {
		b.WriteString("; what was begun goes on")
	}
	if e.Command != "" {
		fmt.Fprintf(&b, "\nCommand: %s\nOutput: %s", e.Command, strings.TrimSpace(e.Output))
	}
	if advice := e.Advice(); advice != "" {
		b.WriteString("\n" + advice)
	}
	return b.String()
}

// Unwrap returns the reason and the underlying error.
func (e *Error) Unwrap() []error {
	errs := []error{e.Reason}
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	return errs
}

// Advice is a sentence or two that tell the node's owner what to do, or empty
// where there is nothing useful to say.
func (e *Error) Advice() string {
	switch e.Reason {
	case ErrNotBlockDevice:
		return fmt.Sprintf("Check that %s exists on this node and is a disk, partition or logical volume.", e.Device)
	case ErrInUse:
		return fmt.Sprintf("lsblk %s and findmnt -S %s show what is mounted or stacked on it here; a mkfs begun earlier may still run.", e.Device, e.Device)
	case ErrUnreadable:
		return fmt.Sprintf("Nothing was written. Check the device behind %s: the kernel log (dmesg) says what could not be read.", e.Device)
	case ErrNotBlank:
		return fmt.Sprintf("Nothing was written. Look at it with wipefs %s and lsblk -f %s. If its data is not needed, blank it by hand: blkdiscard -f -z %s.", e.Device, e.Device, e.Device)
	case ErrWrongFilesystem:
		return fmt.Sprintf("It was not formatted again. Set the volume's file system type to the one on %s, or use another device.", e.Device)
	case ErrReadOnly:
		return "Let it be formatted by a first mount that may write, or provide a volume that has a file system already."
	case ErrToolMissing:
		return adviseTool(e.FSType)
	case ErrUncorrected:
		return fmt.Sprintf("It was not mounted. Take a copy of the device if you can, then run fsck %s by hand.", e.Device)
	case ErrResizeFailed:
		if e.IsRefusedOnline() {
			return "To grow a mounted ext2, ext3 or ext4, the agent needs CAP_SYS_RESOURCE."
		}
	}
	return "" // the program's own output says more than a sentence could
}

// IsRefusedOnline reports whether the kernel does not let this process grow the file system
// while it is mounted.
func (e *Error) IsRefusedOnline() bool {
	return e.Reason == ErrResizeFailed && strings.Contains(e.Output, "Permission denied to resize filesystem")
}

func adviseTool(fstype string) string {
	packages := map[string]string{
		"ext2":  "e2fsprogs on all distributions",
		"ext3":  "e2fsprogs on all distributions",
		"ext4":  "e2fsprogs on all distributions",
		"xfs":   "xfsprogs on all distributions",
		"btrfs": "btrfs-progs on Debian, Ubuntu, Fedora and Alpine, btrfsprogs on SUSE",
		"vfat":  "dosfstools on all distributions",
		"exfat": "exfatprogs on all distributions",
		"ntfs":  "ntfs-3g on Debian and Ubuntu, ntfsprogs on Fedora, ntfs-3g-progs on Alpine",
		"f2fs":  "f2fs-tools on all distributions",
	}
	name, ok := packages[fstype]
	if !ok {
		return fmt.Sprintf("Install the package that brings mkfs.%s on this node.", fstype)
	}
	return fmt.Sprintf("Install the programs for %s on this node: package %s.", fstype, name)
}
