package hostpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pluginbase"
)

// stillMounted says that a released volume, or a part of it, is mounted somewhere
// else on this node, as the subPaths of pods are.
func stillMounted(path, target string) error {
	return &volume.Failure{
		Cause: volume.ErrInUse, Subject: target,
		What: fmt.Sprintf("%s, or a part of it, is still mounted at %s", path, target),
		Next: "it is reclaimed once its pod is torn down, or the other mount of it is unmounted",
	}
}

// release is a PersistentVolume that its claim has left.
type release struct {
	plugin *plugin
	pv     *v1.PersistentVolume // a copy
	path   string
}

// verifyUnused asks whether the data may be destroyed, and adds what this node's
// mount table says. It is asked right before each destruction, however shortly
// before it was asked.
func (r *release) verifyUnused(ctx context.Context) error {
	releases, err := pluginbase.ReleaseVerifier(r.plugin.Host)
	if err == nil {
		err = releases.VerifyReleased(ctx, r.pv.DeepCopy())
	}
	if err != nil {
		return volume.NothingDone(err)
	}
	return volume.NothingDone(r.verifyUnmounted())
}

// verifyUnmounted looks for other mounts of the volume, or of a directory of it.
// Where they are does not matter: the host's root directory need not be the one
// of the node whose pods have them.
func (r *release) verifyUnmounted() error {
	dir, err := os.OpenFile(r.path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil // its deletion finds out why
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	mounts := table.Of(r.plugin.Host.GetMounter())
	shown, err := table.Holding(mounts, dir)
	if err != nil {
		return err
	}
	path, err := pathOf(dir)
	if err != nil {
		return err
	}
	rest, ok := pathin.Cut(shown.Target, path)
	if !ok {
		return fmt.Errorf("cannot match mounts to %s: its path is %s, and its mount is at %s", r.path, path, shown.Target)
	}
	same, err := mounts.ByDevice(shown.Device)
	if err != nil {
		return err
	}
	inFileSystem := filepath.Join(shown.Root, rest)
	for _, e := range same {
		if pathin.In(inFileSystem, e.Root) && e.ID != shown.ID {
			return stillMounted(r.path, e.Target)
		}
	}
	return nil
}

// podsDir is the directory that has all of this node's pods, as the mount table
// spells it.
func (p *plugin) podsDir() (string, error) {
	const anyPod = "pod"
	dir := filepath.Join(p.Host.GetPodPluginDir(anyPod, PluginName), "..", "..", "..")
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return dir, nil
	}
	return real, err
}

// pathOf returns where an open directory lies by now.
func pathOf(dir *os.File) (string, error) {
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(int(dir.Fd())))
}
