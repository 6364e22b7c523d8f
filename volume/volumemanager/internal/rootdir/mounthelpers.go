package rootdir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/pathin"
)

// Helper is a mount(8), umount(8) or one of their helpers that works on
// something below the root directory.
type Helper struct {
	PID     int
	Command string
	Target  string
}

func (h Helper) String() string {
	return fmt.Sprintf("process %d (%s) on %s", h.PID, h.Command, h.Target)
}

// FindHelpers finds the helpers that work below rootDir, by its own path or its
// path without links: mount(8) resolves its arguments. For an owner of the root
// that has started none, they are a dead owner's.
func FindHelpers(proc, rootDir string) (found []Helper) {
	dirs := mountDirs(rootDir)
	if real, err := filepath.EvalSymlinks(rootDir); err == nil {
		dirs = append(dirs, mountDirs(real)...)
	}
	for _, pid := range Processes(proc) {
		command := CommandOf(proc, pid)
		if !isMountCommand(command) || pid == os.Getpid() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "cmdline"))
		if err != nil {
			continue // it has ended
		}
		for _, arg := range bytes.Split(text, []byte{0}) {
			if slices.ContainsFunc(dirs, func(dir string) bool { return pathin.Strictly(dir, string(arg)) }) {
				found = append(found, Helper{pid, command, string(arg)})
				break
			}
		}
	}
	return found
}

// mountDirs are the directories below which something is mounted.
func mountDirs(rootDir string) []string {
	return []string{PodsDir(rootDir), filepath.Join(rootDir, "plugins")}
}

func isMountCommand(command string) bool {
	return command == "mount" || command == "umount" || strings.HasPrefix(command, "mount.") || strings.HasPrefix(command, "umount.")
}

// helperPatience is how long a killed process may take to end. One that hangs in
// the kernel does not.
const helperPatience = 5 * time.Second

// EndHelpers kills the helpers of a dead owner and waits for their end. The
// processes are held by descriptor, so that a number that is used again hits no
// other process. The caller owns the root directory.
func EndHelpers(ctx context.Context, rootDir string, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, helperPatience) // of all together
	defer cancel()
	var errs []error
	for _, h := range FindHelpers(ProcDir, rootDir) {
		err := h.End(ctx)
		if err != nil {
			err = fmt.Errorf("%s was left by a dead owner of the root directory and cannot be ended: %w", h, err)
			errs = append(errs, err)
			continue
		}
		log.Warn("ended a mount helper of a dead owner", "pid", h.PID, "command", h.Command, "target", h.Target)
	}
	return errors.Join(errs...)
}

// End kills the helper and waits for its end, for five seconds or until ctx's deadline. A
// process that has ended, or whose number another has by now, is success.
func (h Helper) End(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, helperPatience)
	defer cancel()
	process, err := unix.PidfdOpen(h.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(process)
	if CommandOf(ProcDir, h.PID) != h.Command {
		return nil // another one by now
	}
	if err := unix.PidfdSendSignal(process, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	deadline, _ := ctx.Deadline()
	fds := []unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, int(max(0, time.Until(deadline).Milliseconds())))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return errors.New("it was killed and does not end; it may hang in the kernel")
		default:
			return nil
		}
	}
}
