package criruntime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The kubelet's defaults.
const (
	logMaxSize  = 10 << 20
	logMaxFiles = 5
	// logEvery is how often the size of a log is looked at.
	logEvery = 10 * time.Second
	// reopenWait is how long the runtime may take for a new log.
	reopenWait = 10 * time.Second
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
// removes the oldest ones. Where the runtime does not, the log gets its name back. A log that
// is not there had its name changed by an agent that was killed before the runtime was told.
func (c *run) rotateLog(ctx context.Context) error {
	log := filepath.Join(c.runtime.LogFile(c.pod, c.spec.Name, c.attempt))
	info, err := os.Lstat(log)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = c.reopenLog(ctx)
	case err == nil && info.Size() <= c.runtime.LogMaxSize:
		return nil
	case err == nil:
		err = c.beginLog(ctx, log)
	}
	if err != nil {
		return err
	}
	rotated, err := rotatedLogs(filepath.Join(c.runtime.LogFile(c.pod, c.spec.Name, c.attempt)))
	if err != nil {
		return err
	}
	for len(rotated) > c.runtime.LogMaxFiles-1 {
		err = errors.Join(err, os.Remove(rotated[0]))
		rotated = rotated[1:]
	}
	return err
}

// beginLog begins a new log. The runtime may have done so though its answer was lost: then
// the new log stays, since the container writes to it.
func (c *run) beginLog(ctx context.Context, log string) error {
	old := log + "." + time.Now().UTC().Format("20060102-150405.000000000")
	if err := os.Rename(log, old); err != nil {
		return err
	}
	err := c.reopenLog(ctx)
	if err == nil {
		return nil
	}
	back := unix.Renameat2(unix.AT_FDCWD, old, unix.AT_FDCWD, log, unix.RENAME_NOREPLACE)
	if errors.Is(back, fs.ErrExist) {
		return nil
	}
	return errors.Join(err, back)
}

// reopenLog tells the runtime, also where ctx ends meanwhile: a log whose name has changed
// is not left alone.
func (c *run) reopenLog(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reopenWait)
	defer cancel()
	if _, err := c.runtime.service.ReopenContainerLog(ctx, &cri.ReopenContainerLogRequest{ContainerId: c.id}); err != nil {
		return fmt.Errorf("reopen it: %w", err)
	}
	return nil
}

// rotatedLogs are the older parts of a log, the oldest first.
func rotatedLogs(log string) ([]string, error) {
	all, err := entriesOf(filepath.Dir(log))
	return slices.DeleteFunc(all, func(file string) bool { return !strings.HasPrefix(file, log+".") }), err
}
