package criruntime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The kubelet's defaults.
const (
	logMaxSize  = 10 << 20
	logMaxFiles = 5
	// logEvery is how often the size of a log is looked at.
	logEvery = 10 * time.Second
)

// keepLogSmall rotates the log of a run until ctx ends.
func (c *run) keepLogSmall(ctx context.Context) {
	ticker := time.NewTicker(logEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if err := c.rotateLog(ctx); err != nil && ctx.Err() == nil {
			c.runtime.Log.Warn("a log is not rotated", "podUID", c.pod, "container", c.spec.Name, "error", err)
		}
	}
}

// rotateLog gives a log that is too large another name, has the runtime begin a new one, and
// removes the oldest ones. Where the runtime does not, the log gets its name back.
func (c *run) rotateLog(ctx context.Context) error {
	log := c.runtime.LogFile(c.pod, c.spec.Name, c.attempt)
	info, err := os.Lstat(log)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() <= c.runtime.LogMaxSize {
		return nil
	}
	if err != nil {
		return err
	}
	old := log + "." + time.Now().UTC().Format("20060102-150405.000000000")
	if err := os.Rename(log, old); err != nil {
		return err
	}
	if _, err := c.runtime.service.ReopenContainerLog(ctx, &cri.ReopenContainerLogRequest{ContainerId: c.id}); err != nil {
		return errors.Join(fmt.Errorf("reopen it: %w", err), os.Rename(old, log))
	}
	rotated, err := rotatedLogs(log)
	if err != nil {
		return err
	}
	for len(rotated) > c.runtime.LogMaxFiles-1 {
		err = errors.Join(err, os.Remove(rotated[0]))
		rotated = rotated[1:]
	}
	return err
}

// rotatedLogs are the older parts of a log, the oldest first.
func rotatedLogs(log string) ([]string, error) {
	all, err := filepath.Glob(log + ".*")
	slices.Sort(all)
	return all, err
}
