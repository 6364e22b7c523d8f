package hostns

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
)

// joinCgroup moves this process into a cgroup of the host in each hierarchy, so that
// the end of the container's cgroup ends neither it nor a daemon that it starts. Where the
// cgroup cannot be made, or takes no process (a cpuset without processors), it is the
// hierarchy's root. leave removes those cgroups where nothing else is in them.
func joinCgroup(name string, mounts []mount.Entry) (leave func(), err error) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return func() {}, err
	}
	var errs []error
	var dirs []string
	lines := bufio.NewScanner(strings.NewReader(string(own)))
	for lines.Scan() {
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if dir := hierarchy(parts[1], mounts); dir != "" {
			dirs = append(dirs, dir)
			errs = append(errs, join(dir, name))
		}
	}
	return func() {
		for _, dir := range dirs {
			_ = enterCgroup(dir)
			_ = os.Remove(filepath.Join(dir, name)) // unless daemons are in it
		}
	}, errors.Join(errs...)
}

// hierarchy is where that with these controllers is mounted; without any it is that of version 2.
func hierarchy(controllers string, mounts []mount.Entry) string {
	for _, e := range mounts {
		switch {
		case e.Root != "/":
		case controllers == "" && e.FSType == "cgroup2":
			return e.Target
		case controllers != "" && e.FSType == "cgroup" && slices.Contains(e.SuperOptions, strings.Split(controllers, ",")[0]):
			return e.Target
		}
	}
	return ""
}

func join(hierarchy, name string) error {
	dir := filepath.Join(hierarchy, name)
	err := os.Mkdir(dir, 0o755)
	if err == nil || errors.Is(err, unix.EEXIST) {
		if err = enterCgroup(dir); err == nil {
			return nil
		}
		_ = os.Remove(dir) // unless others are in it
	}
	if inRoot := enterCgroup(hierarchy); inRoot != nil {
		return fmt.Errorf("leave the container's cgroup: %w", errors.Join(err, inRoot))
	}
	return nil
}

func enterCgroup(dir string) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
}

// runsSystemd reports whether systemd runs the host: then each daemon gets a scope.
func runsSystemd(dir string) bool {
	info, err := os.Lstat(cmp.Or(dir, "/run/systemd/system"))
	return err == nil && info.IsDir()
}
