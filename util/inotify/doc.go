// Package inotify reads the kernel's events about files and directories (inotify(7)).
//
// Like every package below util, it carries no promise of compatibility.
package inotify
