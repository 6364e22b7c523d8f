package iscsi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/machinedir"
)

// lockTarget has a target for one caller of the machine, from the look at what is there until
// the last step: the disks of one session may be of several root directories. An error has
// done nothing.
func (p *plugin) lockTarget(ctx context.Context, iqn string) (unlock func(), err error) {
	unlockHere, err := p.targets.Lock(ctx, iqn)
	if err != nil {
		return nil, volume.NothingDone(fmt.Errorf("another volume of target %s is being mounted or unmounted: %w", iqn, err))
	}
	if p.lockDir == "" {
		return unlockHere, nil
	}
	sum := sha256.Sum256([]byte(iqn))
	file := hex.EncodeToString(sum[:])
	lock, err := machinedir.Take(p.lockDir, file, "")
	if err != nil {
		unlockHere()
		return nil, volume.NothingDone(fmt.Errorf("target %s cannot be had alone on this machine: %w", iqn, err))
	}
	return func() {
		_ = lock.Remove(file)
		_ = os.Remove(p.lockDir) // which may have others
		lock.Close()
		unlockHere()
	}, nil
}
