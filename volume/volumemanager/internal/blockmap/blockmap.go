// Package blockmap puts the device of a block volume into a pod's directory, as the kubelet
// does, and takes it out again. On disk that is, in this order:
//
//	<global>/<podUID>                            the device's node, bound
//	/dev/loop<n>                                 holds that open
//	pods/<uid>/volumeDevices/<plugin~>/<name>    a link to the device
//
// The link comes last, since containers find the device by it. Each step finds what an
// earlier attempt has done, and succeeds where nothing is left to be done.
package blockmap

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	mountutils "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/loophold"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// ErrReplaced is the cause of an error where a pod's device is not the volume's any more.
const ErrReplaced volume.Cause = "the pod has another device"

// Holder keeps a device open, see volumemanager.DeviceHolder.
type Holder interface {
	Hold(path string) error
	Release(path string) error
}

// Mapper maps devices. Its methods may be called from several goroutines, for one place
// one after the other.
type Mapper struct {
	Mounter mountutils.Interface
	Holder  Holder
	// KeepRoot keeps the root directory locked until done is called.
	KeepRoot func() (done func(), err error)

	reaches blockingcall.Group[string] // looks at paths that may hang
}

// Place is where a pod's block volume is on disk.
type Place struct {
	// Bind is where the device's node is bound; Link leads to the device, in Dir.
	Bind, Dir, Link string
}

// PlaceOf returns the place of a volume for a pod.
func PlaceOf(v volume.BlockVolume, spec *volume.Spec, podUID types.UID) (Place, error) {
	global, err := v.GetGlobalMapPath(spec)
	if err != nil {
		return Place{}, err
	}
	dir, name := v.GetPodDeviceMapPath()
	return Place{Bind: Bind(global, podUID), Dir: dir, Link: filepath.Join(dir, name)}, nil
}

// Bind is where the device of a volume is bound for a pod, below the volume's global path.
func Bind(global string, podUID types.UID) string { return filepath.Join(global, string(podUID)) }

func (p Place) newLink() string { return p.Bind + ".link" }

// Publish shows a device to the pod, and returns the device with its links resolved. Another
// device at the place is [ErrReplaced], with the volume's name in the pod.
func (m *Mapper) Publish(ctx context.Context, volumeName string, place Place, device string) (node string, err error) {
	if node, err = m.resolve(ctx, device); err != nil {
		return "", err
	}
	if err := m.bind(ctx, volumeName, place.Bind, node); err != nil {
		return "", err
	}
	if err := m.holding(ctx, place.Bind, m.Holder.Hold); err != nil {
		return "", fmt.Errorf("the device cannot be kept from being replaced: %w", err)
	}
	if err := linkTo(node, place); err != nil {
		return "", err
	}
	return node, nil
}

// Withdraw takes the device from the pod: Publish's steps in reverse.
func (m *Mapper) Withdraw(ctx context.Context, place Place) error {
	for _, link := range []string{place.Link, place.newLink()} {
		if err := unlink(link); err != nil {
			return err
		}
	}
	if err := m.holding(ctx, place.Bind, m.Holder.Release); err != nil {
		return err
	}
	// Never lazily: the device would still be in use, out of sight.
	if err := podmount.UnmountAll(ctx, m.Mounter, place.Bind, mount.UnmountOptions{}); err != nil {
		return err
	}
	return podmount.RemovePoint(place.Bind)
}

// RemoveGlobal removes the directory below which the device was bound for its pods. Where it
// is not empty, a pod without a record has the device.
func RemoveGlobal(dir string) error {
	err := eintr.Do(func() error { return unix.Rmdir(dir) })
	switch {
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return fmt.Errorf("the device is still bound below %s for a pod that is not known here; find out for which, and unmount it there: %w", dir, err)
	case err != nil && !errors.Is(err, unix.ENOENT):
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// holding makes one of the holder's calls.
func (m *Mapper) holding(ctx context.Context, bind string, call func(path string) error) error {
	return m.reaches.Do(ctx, bind, func() error {
		done, err := m.KeepRoot()
		if err != nil {
			return err
		}
		defer done()
		return call(bind)
	})
}

// resolve resolves the links that lead to a device, which may lie anywhere.
func (m *Mapper) resolve(ctx context.Context, path string) (string, error) {
	node := make(chan string, 1)
	err := m.reaches.Do(ctx, path, func() error {
		resolved, err := filepath.EvalSymlinks(path)
		node <- resolved
		return err
	})
	if err != nil {
		return "", err
	}
	return <-node, nil
}

func (m *Mapper) bind(ctx context.Context, volumeName, bind, node string) error {
	mounts := table.Of(m.Mounter)
	_, bound, err := mounts.At(bind)
	if err != nil {
		return err
	}
	if bound {
		return m.checkBound(ctx, volumeName, bind, node)
	}
	// An existing file is of an earlier attempt; if not, the mount fails.
	if err := podmount.MakePoint(bind, false); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return mount.Mount(ctx, m.Mounter, mount.Request{Source: node, Target: bind, Options: []string{"bind"}})
}

// checkBound refuses to call another device the pod's.
func (m *Mapper) checkBound(ctx context.Context, volumeName, bind, node string) error {
	same := make(chan bool, 1)
	err := m.reaches.Do(ctx, bind, func() error {
		has, err := deviceNumber(bind)
		if err != nil {
			return err
		}
		is, err := deviceNumber(node)
		same <- has == is
		return err
	})
	if err != nil {
		return err
	}
	if <-same {
		return nil
	}
	return &volume.Failure{
		Cause: ErrReplaced, Subject: volumeName,
		What: fmt.Sprintf("volume %q is mapped, but %s is another device by now than the one that its pod has (bound at %s)", volumeName, node, bind),
		Next: "tear the pod down, and find out who replaced the device",
	}
}

func deviceNumber(path string) (uint64, error) {
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Stat(path, &st) }); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return uint64(st.Rdev), nil
}

// linkTo makes the pod's link. One that leads elsewhere is of an earlier
// attempt, when the device had another name; it is replaced in one step, so that
// containers always find a device.
func linkTo(node string, place Place) error {
	if err := os.MkdirAll(place.Dir, 0o750); err != nil {
		return err
	}
	err := os.Symlink(node, place.Link)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	was, err := os.Readlink(place.Link)
	switch {
	case err != nil:
		return fmt.Errorf("the pod's device path is not a link; another process made it: remove it: %w", err)
	case was == node:
		return nil
	}
	return replaceLink(node, place)
}

// replaceLink makes the link beside the bind, where no program takes it for a
// volume, and renames it to its place. What a crash leaves goes with the next
// attempt, or when the device is taken from the pod.
func replaceLink(node string, place Place) error {
	if err := unlink(place.newLink()); err != nil {
		return err
	}
	if err := os.Symlink(node, place.newLink()); err != nil {
		return err
	}
	return os.Rename(place.newLink(), place.Link)
}

// unlink removes a link; a missing one is success, and anything else stays.
func unlink(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSymlink:
		return fmt.Errorf("%s is at the place of the pod's device, but no link; nothing was deleted: find out who put it there", path)
	}
	return podmount.Unlink(path)
}

// LoopHolder holds devices as the kubelet does: by a loop device.
type LoopHolder struct{}

// Hold implements [Holder].
func (LoopHolder) Hold(path string) error {
	_, err := loophold.Hold(path)
	return err
}

// Release implements [Holder].
func (LoopHolder) Release(path string) error { return loophold.Release(path) }
