package emptydirs

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/openat"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// SetUp makes dir what o says. It is idempotent: a directory or mount that is
// there with its marker is left as it is, with the contents, owner and mode
// that the pod may have changed since; only the size of a tmpfs is brought up
// to date. Where it fails, it removes what this
// call made. Invalid options are a *[volume.InvalidSpecError], another mount at
// dir is a *[podmount.OccupiedError], and errors that left nothing behind are
// marked by [volume.NothingDone]. Calls for one dir must not overlap.
func SetUp(ctx context.Context, v volume.PodVolume, dir string, o Options) error {
	o, err := o.normal()
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return volume.NothingDone(context.Cause(ctx))
	}
	mark := markerOf(v, dir, o.Wrapped)
	ready, err := mark.isSet()
	if err != nil {
		return volume.NothingDone(err)
	}
	if o.Medium == v1.StorageMediumDefault {
		return setUpDirectory(ctx, v.Host.GetMounter(), dir, o, mark, ready)
	}
	return setUpMount(ctx, v.Host.GetMounter(), dir, o, mark, ready)
}

func setUpDirectory(ctx context.Context, m mount.Interface, dir string, o Options, mark marker, ready bool) error {
	const private = 0o700 // until it has its own mode, which may keep its owner out
	made := podmount.NewDir(dir, private) == nil
	if !made { // on a new directory nothing is mounted
		nothing := func(mount.Entry) bool { return false }
		if _, err := podmount.Mounted(m, mount.Request{Source: "a plain directory", Target: dir}, nothing); err != nil {
			return err
		}
		var err error
		if made, err = podmount.MakeDir(dir, private); err != nil {
			return volume.NothingDone(err)
		}
	}
	if o.Limit != nil {
		err := o.Limit(dir)
		switch {
		case err != nil && made:
			return failed(ctx, m, dir, mark, made, err)
		case err != nil: // its marker stays: a later set-up must not change what the pod has
			return err
		}
	}
	if ready && !made {
		return nil
	}
	return complete(ctx, m, dir, o, mark, made)
}

func setUpMount(ctx context.Context, m mount.Interface, dir string, o Options, mark marker, ready bool) error {
	request, err := o.request(dir)
	if err != nil {
		return err
	}
	same := func(e mount.Entry) bool { return e.FSType == request.FSType }
	if podmount.NewDir(dir, podmount.DirMode) != nil { // nothing is mounted on a new directory, and nothing is in it
		mounted, err := podmount.Mounted(m, request, same)
		switch {
		case err != nil:
			return err
		case mounted && ready:
			return resize(ctx, m, dir, o)
		case mounted:
			return complete(ctx, m, dir, o, mark, false)
		}
		if _, err := podmount.MakeDir(dir, podmount.DirMode); err != nil {
			return volume.NothingDone(err)
		}
		if err := checkNothingHidden(dir, o.Medium); err != nil {
			return volume.NothingDone(err)
		}
	}
	err = mountMedium(ctx, m, request, same, func() error {
		if !ready {
			return nil
		}
		return mark.clear() // without its mount it outlived a reboot, and says nothing
	})
	if err != nil {
		return err
	}
	return complete(ctx, m, dir, o, mark, true)
}

// complete does what remains once the directory or mount is there, and undoes
// everything when it fails, unless the directory was not made by this call: it
// may hold a user's data then.
func complete(ctx context.Context, m mount.Interface, dir string, o Options, mark marker, made bool) error {
	err := own(dir, o)
	if err == nil {
		err = mark.set()
	}
	if err == nil {
		return nil
	}
	return failed(ctx, m, dir, mark, made, err)
}

func failed(ctx context.Context, m mount.Interface, dir string, mark marker, made bool, err error) error {
	undoErr := mark.clear()
	if !made {
		return errors.Join(err, undoErr)
	}
	if undoErr = errors.Join(undoErr, podmount.Undo(ctx, m, dir)); undoErr != nil {
		return fmt.Errorf("%w; and cleaning up after it failed: %w", err, undoErr)
	}
	return volume.NothingDone(err)
}

// own gives the directory its exact mode and group.
func own(dir string, o Options) error {
	d, err := openat.Dir(nil, dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if o.GID != nil {
		if err := d.Chown(-1, int(*o.GID)); err != nil {
			return ownershipError(*o.GID, err)
		}
	}
	// After the change of group, which may clear the setgid bit.
	return d.Chmod(*o.Mode)
}

func ownershipError(gid int64, err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("the volume cannot be given to group %d (fsGroup): %w; run as root or use a group of this user", gid, err)
	}
	return err
}

const (
	// PluginName names the plugin of emptyDir volumes, whose marker all of them
	// have.
	PluginName    = "kubernetes.io/empty-dir"
	wrappedPrefix = "wrapped_"
	readyName     = "ready"
)

// marker is the file that says that a volume was set up at one directory.
type marker struct{ dir, name string }

// markerOf returns the kubelet's marker for the volume's own directory. At
// another one the volume has a marker of its own beside it.
func markerOf(v volume.PodVolume, at string, wrapped bool) marker {
	volumeName, name := v.Name, readyName
	if wrapped {
		volumeName = wrappedPrefix + volumeName
	}
	if at = filepath.Clean(at); at != filepath.Clean(v.GetPath()) {
		name = fmt.Sprintf("%s-%x", readyName, sha256.Sum256([]byte(at)))
	}
	return marker{filepath.Join(v.Host.GetPodPluginDir(v.PodUID, PluginName), volumeName), name}
}

func (m marker) ready() string { return filepath.Join(m.dir, m.name) }

// isSet reports whether set-up was once completed.
func (m marker) isSet() (bool, error) {
	_, err := os.Lstat(m.ready())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// set is not synced: a marker that a crash loses is written again.
func (m marker) set() error {
	if _, err := podmount.MakeDir(m.dir, 0o750); err != nil {
		return err
	}
	ready, err := openat.File(nil, m.ready(), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	return ready.Close()
}

// clear removes the marker, and its directory with the last of the volume's;
// missing ones are success.
func (m marker) clear() error {
	err := eintr.Do(func() error { return unix.Unlink(m.ready()) })
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
		return &fs.PathError{Op: "unlink", Path: m.ready(), Err: err}
	}
	err = podmount.RemoveDir(m.dir)
	if _, held := errors.AsType[*podmount.NotEmptyError](err); held && m.hasSiblings() {
		return nil
	}
	return err
}

// hasSiblings reports whether the volume is set up at another directory too.
func (m marker) hasSiblings() bool {
	entries, err := os.ReadDir(m.dir)
	return err == nil && slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return strings.HasPrefix(e.Name(), readyName)
	})
}

// MediumOf returns the medium of a directory with this mount on it; the
// default one where the file system is none of the media's.
func MediumOf(entry mount.Entry) v1.StorageMedium {
	switch entry.FSType {
	case FSTypeMemory:
		return v1.StorageMediumMemory
	case FSTypeHugePages:
		if size, ok := byteOption(entry, "pagesize"); ok {
			return v1.StorageMediumHugePagesPrefix + v1.StorageMedium(resource.NewQuantity(size, resource.BinarySI).String())
		}
		return v1.StorageMediumHugePages
	}
	return v1.StorageMediumDefault
}

// byteOption reads an option such as "size=1024k" of an entry, in bytes.
func byteOption(entry mount.Entry, name string) (int64, bool) {
	for _, options := range [][]string{entry.SuperOptions, entry.Options} {
		for _, o := range options {
			if value, ok := strings.CutPrefix(o, name+"="); ok {
				return parseBytes(value)
			}
		}
	}
	return 0, false
}

// parseBytes reads a number as the kernel prints and takes it: with k, m or g
// as multiples of 1024.
func parseBytes(s string) (int64, bool) {
	shift := 0
	digits := strings.TrimRight(s, "kKmMgG")
	switch strings.ToLower(s[len(digits):]) {
	case "":
	case "k":
		shift = 10
	case "m":
		shift = 20
	case "g":
		shift = 30
	default:
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 || n > (1<<63-1)>>shift {
		return 0, false
	}
	return n << shift, true
}

// resize gives a tmpfs that is mounted already the size that is wanted now.
// Files stay; the kernel refuses less than what they need. A wrapped one keeps the
// size that it was made with, as the kubelet's: its files come from elsewhere, and
// must not be kept from being brought up to date.
func resize(ctx context.Context, m mount.Interface, dir string, o Options) error {
	if o.SizeBytes == 0 || o.Wrapped {
		return nil
	}
	mounts := table.Of(m)
	entry, mounted, err := mounts.At(dir)
	if err != nil || !mounted || entry.FSType != FSTypeMemory {
		return volume.NothingDone(err)
	}
	if size, ok := byteOption(entry, "size"); ok && wholePages(size) == wholePages(o.SizeBytes) {
		return nil
	}
	request := mount.Request{
		Source: FSTypeMemory, Target: dir, FSType: FSTypeMemory,
		Options: []string{"remount", sizeOption(o.SizeBytes)},
	}
	if err := mount.Mount(ctx, m, request); err != nil {
		return volume.NothingDone(fmt.Errorf(
			"the size of the volume in memory stays as it was; if its files need more than %d bytes, remove some or raise the limit: %w", o.SizeBytes, err))
	}
	return nil
}

// wholePages rounds up, as the kernel does with the size of a tmpfs.
func wholePages(bytes int64) int64 {
	page := int64(os.Getpagesize())
	return (bytes-1)/page + 1
}

// HiddenFilesError says that a mount is refused because it would hide files:
// the volume was set up on disk before.
type HiddenFilesError struct {
	Dir string
	// Medium is the medium asked for.
	Medium v1.StorageMedium
}

func (e *HiddenFilesError) Error() string {
	return fmt.Sprintf("medium %s is wanted at %s, but the volume has files on disk there, which the mount would hide; "+
		"nothing was changed: use the medium that the volume had, or tear it down and set it up again", e.Medium, e.Dir)
}

func checkNothingHidden(dir string, medium v1.StorageMedium) error {
	d, err := openat.Dir(nil, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	_, err = d.Readdirnames(1)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return &HiddenFilesError{Dir: dir, Medium: medium}
}
