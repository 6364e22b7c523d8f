// Package durable writes small files that survive a crash.
//
// [WriteFile] replaces a file as a whole: a reader finds the old contents or the
// new, never a part, also after a crash or loss of power. [Create] makes one as a
// whole, and never replaces. Without an error of these or [Remove], the change is
// on disk, as far as file system and disk keep fsync(2)'s promise.
//
// Like every package below util, it carries no promise of compatibility.
package durable
