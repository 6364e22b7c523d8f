package local

import (
	"github.com/podvol/podvol/util/blockdev"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/validation"
)

// Config is how the plugin works. Its zero value is what nodes need: released
// volumes keep their data.
type Config struct {
	// Clean says how released volumes with reclaim policy Delete are cleaned.
	Clean CleanConfig
	// System is where devices are described; its zero value is the process's own
	// machine.
	System blockdev.System
}

// CleanConfig is what Delete does with a volume. The PersistentVolume of a volume
// that could not be cleaned stays, and says why.
type CleanConfig struct {
	// Action chooses what to do; "" is nothing: NewDeleter refuses.
	Action CleanAction
	// Below are the directories strictly below which a volume's path must lie to be
	// cleaned, links of all but its last element resolved: the ones that discovery
	// looks into. No PersistentVolume can have anything else of the node cleaned.
	// Empty: nothing is cleaned.
	Below []string
	// Devices is how block devices are wiped, also those with a file system that
	// the plugin has made; "" refuses them.
	Devices WipeMethod
}

// CleanAction is the action on a released volume's content.
type CleanAction string

const (
	// CleanNever keeps it.
	CleanNever CleanAction = ""
	// CleanDryRun only says what would be deleted; the error is a
	// *[reclaim.DryRunError], and the PersistentVolume stays.
	CleanDryRun CleanAction = "DryRun"
	// CleanDelete deletes it.
	CleanDelete CleanAction = "Delete"
)

// WipeMethod is how a block device is wiped.
type WipeMethod string

const (
	// WipeNever refuses devices.
	WipeNever WipeMethod = ""
	// WipeSignatures overwrites the first 4 MiB, the last MiB and every signature of
	// a file system or anything else, so that the device counts as blank. Data in
	// between stays, and the next user of a raw device can read it.
	WipeSignatures WipeMethod = "Signatures"
	// WipeDiscard tells the device that nothing of it is needed (BLKDISCARD), and
	// does what WipeSignatures does. It depends on the device which data can still
	// be read.
	WipeDiscard WipeMethod = "Discard"
	// WipeZero overwrites all of it with zeroes (BLKZEROOUT), by a command of the
	// device where it has one. It may take hours, and begins anew after a restart.
	WipeZero WipeMethod = "Zero"
)

func (c CleanConfig) check() error {
	switch c.Action {
	case CleanNever, CleanDryRun, CleanDelete:
	default:
		return volume.Invalid("Clean.Action", "%q is none of %q, %q and %q", c.Action, CleanNever, CleanDryRun, CleanDelete)
	}
	for _, dir := range c.Below {
		if err := validation.CheckAbsolutePath("Clean.Below", dir); err != nil {
			return err
		}
	}
	switch c.Devices {
	case WipeNever, WipeSignatures, WipeDiscard, WipeZero:
		return nil
	}
	return volume.Invalid("Clean.Devices", "%q is none of %q, %q, %q and %q", c.Devices, WipeNever, WipeSignatures, WipeDiscard, WipeZero)
}
