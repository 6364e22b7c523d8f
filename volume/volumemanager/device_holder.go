package volumemanager

import "github.com/podvol/podvol/util/loophold"

// DeviceHolder keeps a block volume's device open while a pod has it, so that
// the kernel cannot give its number to another device: else a device that was
// detached and another attached would be the pod's without anybody's knowing.
// A hold outlives the process.
//
// Both calls may block as long as the device does. The manager waits no longer
// than an operation's context allows, makes one call for a path at a time, and
// keeps its root directory locked until each has returned.
type DeviceHolder interface {
	// Hold holds the device at path, a bind mount of its node. Held already is
	// success.
	Hold(path string) error
	// Release ends the hold; none is success, also where path is gone.
	Release(path string) error
}

// loopHolder is the kubelet's way: a loop device.
type loopHolder struct{}

func (loopHolder) Hold(path string) error {
	_, err := loophold.Hold(path)
	return err
}

func (loopHolder) Release(path string) error { return loophold.Release(path) }
