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
// replaces ..data by one rename. Whoever opens a file sees one version of it;
// whoever opens ..data as a directory sees one version of all files for as
// long as it stays open, since the version before the current one is kept
// until the next one is in place. Links for names that go are removed before the
// rename and links for new names made after it, so that none ever dangles.
// With the first publication all files appear by the rename.
//
// Nothing is synced to disk: as with the kubelet, contents are derived from
// objects and rebuilt at start. A crash at any moment leaves the old version
// or the new one, and the next publication completes and tidies what the crash
// interrupted.
//
// Names that begin with ".." are reserved for the layout. Everything else in
// the directory, such as mount points of other volumes, is left alone.
//
// It needs no root: files that are to have an owner of their own do. It builds for every
// system, and works on Linux, macOS, FreeBSD, NetBSD and OpenBSD; elsewhere it fails with
// [errors.ErrUnsupported]. It imports the standard library, golang.org/x/sys/unix and nothing
// of Kubernetes.
package atomicdir
