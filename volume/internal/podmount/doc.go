// Package podmount makes and removes the one mount at a pod's volume
// directory, for the plugins whose volume is a mount: a mount that is there
// already is success, a failed one leaves neither mount nor directory, and
// teardown takes every mount off the directory and removes it by rmdir alone.
//
// What is mounted is asked of the mount table, never of the mounted file
// system, so that a server that does not answer cannot block anything here but
// the mount itself.
package podmount
