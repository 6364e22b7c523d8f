// Package podmount makes and removes the one mount at a pod's volume directory,
// for the plugins whose volume is a mount. An existing mount is success, and a
// failed one leaves neither mount nor directory. Teardown takes every mount off
// the directory and removes it by rmdir alone.
//
// It asks the mount table for mounts, never the mounted file system, so that a
// server that does not answer can only block the mount itself.
package podmount
