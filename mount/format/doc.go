// Package format makes a file system on a device that is proven blank, checks
// one that is there, grows it, and mounts it: what SafeFormatAndMount and
// ResizeFs of k8s.io/mount-utils promise, with a proof before the mkfs.
//
// # When a device is formatted
//
// Only where all of this holds. Anything else, or an unreadable place, is an
// *[Error] and the device stays as it is:
//
//   - it is a block device, writable, and opened with O_EXCL, so that nothing on
//     this node has it mounted, swapped on or stacked upon;
//   - it has no signature and no partition table that this package knows, and
//     none that blkid(8) knows where that is installed;
//   - its first 4 MiB and its last 1 MiB are zeroes, all of it if it is smaller;
//   - the mount is not asked for read-only.
//
// The package has signatures of its own, since blkid(8) is not everywhere and
// busybox's cannot probe: without them a file system that is there would be refused
// as content, not mounted.
//
// # Between the proof and the mkfs
//
// A mkfs opens the device with O_EXCL itself, so the proof's own descriptor has
// to be closed a moment before. A lock (fcntl(2), F_OFD_SETLK) on the device node
// lets only one user of this package at the device, in one process or in several.
// It is exclusive from before the proof to the end of the mkfs or fsck, and then
// shared until the device is mounted. Another program that makes a file system in
// that moment, of a few milliseconds, is told by mkfs.xfs and mkfs.btrfs, which
// run without their force flags and look again; mkfs.ext4 does not look.
//
// # What a crash leaves
//
// A mkfs is never killed: half a file system would be neither blank nor usable.
// When ctx ends, only the wait ends; the mkfs goes on, and so does it when this
// process dies, as it has a session and an output file of its own, and inherits
// the lock. The next call waits for it, or in a new process fails with
// [ErrInUse] until it is done, and then mounts what it made.
//
// That leaves the crash of the machine itself, or of a service manager that kills
// every process of the agent's control group. Where the mkfs had written nothing
// yet the device is still blank. mke2fs, mkfs.xfs and mkfs.btrfs mark the file
// system as complete with their last write, so half a one is never mistaken for a
// whole. It is refused with [ErrNotBlank], and named as unfinished where known,
// until its owner blanks the device. Nothing here can know that the rest of it is
// worthless.
package format
