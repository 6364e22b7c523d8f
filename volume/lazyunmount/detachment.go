// Package lazyunmount is about volumes whose mount had to be detached lazily: the error
// of such a teardown, which is for Linux, and the form in which a node stores it.
package lazyunmount

import "time"

// Detachment is an [Error] in the form in which it is stored. With it a
// restarted node still knows that the file system may be in use.
type Detachment struct {
	At time.Time `json:"at"`
	// Source, FSType and Target describe the mount that was detached last.
	Source string `json:"source,omitempty"`
	FSType string `json:"fsType,omitempty"`
	Target string `json:"target,omitempty"`
	// Superblocks are the keys of the file systems; see mount.Superblock.Key.
	Superblocks []string `json:"superblocks"`
}
