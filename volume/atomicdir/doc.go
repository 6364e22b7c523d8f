// Package atomicdir publishes a set of files into a directory so that all of
// them change at once.
//
// The layout is that of the kubelet's config map and secret volumes, so either
// can take over a directory from the other:
//
//	..2026_01_31_12_00_00.123456789/   one version of the files, never changed
//	..data -> ..2026_01_31_12_00_00.123456789
//	ca.crt -> ..data/ca.crt            a link for each top-level name
//
// An update writes a whole new version beside the current one and then
// replaces ..data by one rename. A process that opens a file sees one version of it.
// A process that opens ..data as a directory sees one version of all files for as
// long as it stays open, since the version before the current one is kept
// until the next one is in place. Links for names that go are removed before the
// rename and links for new names made after it, so that none ever dangles.
// With the first publication all files appear when ..data is made.
//
// Nothing is synced to disk, as with the kubelet: contents are derived from objects and
// rebuilt at start. So the guarantees are for a crash of the process, not of the machine:
//   - A crash of the process at any moment leaves the old version or the new one. The next
//     publication, even of an unchanged set, completes and tidies what the crash interrupted:
//     it removes versions that were never current, which may hold secrets.
//   - A power cut or a crash of the kernel may leave files empty or incomplete, names missing,
//     and the old version, none, or a torn one at ..data, even after Publish has returned.
//   - A new Publisher repairs that: its first publication into a directory reads back what is
//     there, byte for byte. Until then, readers may see it; so publish before they start.
//
// Versions that crashes left are told from the version before the current one by their times,
// so a clock that was set back may cost readers that one early, or keep a leftover until the
// next update. In doubt they stay.
//
// Names that begin with ".." are reserved for the layout. Everything else in
// the directory, such as mount points of other volumes, is left alone.
//
// It needs no root: files that are to have an owner of their own do. It builds for every
// system, and works on Linux, macOS, FreeBSD, NetBSD and OpenBSD; elsewhere it fails with
// [errors.ErrUnsupported]. It imports the standard library, golang.org/x/sys/unix and nothing
// of Kubernetes.
package atomicdir
