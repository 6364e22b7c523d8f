package vmtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/filelock"
)

const (
	// kernelVar names a directory with another kernel than Debian's.
	kernelVar = "PODVOL_VMTEST_KERNEL"
	// kernelPackage is Debian's package that depends on that of its newest kernel.
	kernelPackage = "linux-image-amd64"
)

// kernel is one that can be booted.
type kernel struct {
	image   string
	modules *modulesOf
}

// openKernel returns the kernel in dir, or if dir is empty the one that the
// environment names, or Debian's.
func openKernel(ctx context.Context, dir string) (*kernel, error) {
	if runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("%w: machines are for amd64 only, this is %s", ErrUnavailable, runtime.GOARCH)
	}
	if dir == "" {
		dir = os.Getenv(kernelVar)
	}
	if dir == "" {
		var err error
		if dir, err = debianKernel(ctx); err != nil {
			return nil, err
		}
	}
	return kernelIn(dir)
}

func kernelIn(dir string) (*kernel, error) {
	image, err := onlyMatch(filepath.Join(dir, "boot", "vmlinuz-*"))
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(expandedName(image)); err == nil {
		image = expandedName(image)
	}
	tree, err := onlyMatch(filepath.Join(dir, "lib", "modules", "*"))
	if err != nil {
		return nil, err
	}
	if tree, err = filepath.Abs(tree); err != nil {
		return nil, err
	}
	modules, err := readModules(tree)
	if err != nil {
		return nil, fmt.Errorf("%w: %w (depmod makes these tables)", ErrUnavailable, err)
	}
	return &kernel{image: image, modules: modules}, nil
}

// expandedName is where fetchKernel puts what is packed in an image.
func expandedName(image string) string {
	dir, name := filepath.Split(image)
	return filepath.Join(dir, "vmlinux"+strings.TrimPrefix(name, "vmlinuz"))
}

func onlyMatch(pattern string) (string, error) {
	found, err := filepath.Glob(pattern)
	if err != nil {
		return "", err
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%w: %d files match %s, want one", ErrUnavailable, len(found), pattern)
	}
	return found[0], nil
}

// debianKernel returns the directory of Debian's newest kernel, which it
// fetches and unpacks unless that was done before. A user's processes take
// turns at it.
func debianKernel(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	cache = filepath.Join(cache, "podvol", "vmtest")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	unlock, err := lockDir(cache)
	if err != nil {
		return "", err
	}
	defer unlock()

	name, version, err := newestKernel(ctx)
	if err != nil {
		return "", fmt.Errorf("%w: no kernel: %w; set %s to the directory of an unpacked one", ErrUnavailable, err, kernelVar)
	}
	dir := filepath.Join(cache, name+"_"+strings.ReplaceAll(version, ":", "%3a"))
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	if err := fetchKernel(ctx, cache, name+"="+version, dir); err != nil {
		return "", fmt.Errorf("%w: no kernel: %w", ErrUnavailable, err)
	}
	return dir, nil
}

// lockDir keeps other processes out until unlock.
func lockDir(dir string) (unlock func(), err error) {
	f, err := filelock.Open(dir, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	return func() { filelock.Close(f) }, nil
}

// newestKernel asks apt, which answers from its lists alone, for the package
// that kernelPackage depends on, and its version.
func newestKernel(ctx context.Context) (name, version string, err error) {
	out, err := output(ctx, "", "apt-cache", "show", "--no-all-versions", kernelPackage)
	if err != nil {
		return "", "", err
	}
	found := regexp.MustCompile(`(?m)^Depends:.*?\b(linux-image-[0-9][^ ,]*)(?: \(= ([^)]+)\))?`).FindStringSubmatch(out)
	if found == nil {
		return "", "", fmt.Errorf("apt knows no package %s that depends on a kernel (apt-get update fetches its lists)", kernelPackage)
	}
	if out, err = output(ctx, "", "apt-cache", "show", "--no-all-versions", found[1]); err != nil {
		return "", "", err
	}
	versions := regexp.MustCompile(`(?m)^Version: (\S+)$`).FindStringSubmatch(out)
	if versions == nil {
		return "", "", fmt.Errorf("apt shows no version of %s", found[1])
	}
	return found[1], versions[1], nil
}

// fetchKernel makes dir complete or not at all.
func fetchKernel(ctx context.Context, cache, pkg, dir string) error {
	work, err := os.MkdirTemp(cache, "unpack-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if _, err := output(ctx, work, "apt-get", "download", "-q", pkg); err != nil {
		return err
	}
	file, err := onlyMatch(filepath.Join(work, "*.deb"))
	if err != nil {
		return err
	}
	tree := filepath.Join(work, "tree")
	if _, err := output(ctx, work, "dpkg", "-x", file, tree); err != nil {
		return err
	}
	modules, err := onlyMatch(filepath.Join(tree, "lib", "modules", "*"))
	if err != nil {
		return err
	}
	if err := slim(modules); err != nil {
		return err
	}
	// What loads modules in the machine knows no compression.
	if _, err := output(ctx, modules, "find", ".", "-name", "*.ko.xz", "-exec", "xz", "-d", "{}", "+"); err != nil {
		return err
	}
	image, err := onlyMatch(filepath.Join(tree, "boot", "vmlinuz-*"))
	if err != nil {
		return err
	}
	if _, err := expand(ctx, image, expandedName(image)); err != nil {
		return err
	}
	box, err := busybox()
	if err != nil {
		return err
	}
	if _, err := output(ctx, work, box, "depmod", "-b", tree, filepath.Base(modules)); err != nil {
		return err
	}
	if err := os.Chmod(tree, 0o755); err != nil {
		return err
	}
	return os.Rename(tree, dir)
}

// slim removes two thirds of the modules: drivers of hardware that the machine
// does not have.
func slim(modules string) error {
	for _, part := range []string{"sound", "drivers/gpu", "drivers/media", "drivers/staging", "drivers/iio",
		"drivers/net/ethernet", "drivers/net/wireless", "drivers/hwmon", "drivers/input", "drivers/usb"} {
		if err := os.RemoveAll(filepath.Join(modules, "kernel", part)); err != nil {
			return err
		}
	}
	return nil
}

// output runs a command and returns its standard output; the error has what it
// said on the other.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
