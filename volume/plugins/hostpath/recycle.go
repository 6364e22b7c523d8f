package hostpath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/internal/recycler"
	"github.com/podvol/podvol/volume/internal/sharedirs"
	"github.com/podvol/podvol/volume/internal/wipe"
	"github.com/podvol/podvol/volume/validation"
)

// emptier has the capability of a plugin that recycles.
type emptier struct{ plugin *plugin }

// recycling is the emptying of one released volume.
type recycling struct {
	release
	config RecycleConfig
	recycler.Recycling
}

// Recycle implements [volume.RecyclableVolumePlugin] as [RecycleConfig] says. The
// host must have the role [volume.ReleaseVerifier], whose refusal is returned and
// ends a recycling under way; else the error is a *[volume.MissingRoleError]. The
// spec must be the stored PersistentVolume's, with UIDs. The error is a
// *[reclaim.DryRunError], a *[reclaim.IncompleteError] that says how far it came,
// or the obstacle, such as a *[volume.InvalidSpecError], [ErrOtherNode],
// [volume.ErrInUse] or [ErrHoldsVolumes], in a *[volume.Error]. Record is not
// called after the return.
func (m emptier) Recycle(ctx context.Context, pvName string, spec *volume.Spec, record volume.RecycleEventRecorder) error {
	r, err := m.plugin.newRecycling(pvName, spec)
	if err == nil {
		r.Events.To(record)
		defer r.Events.To(nil)
		err = r.recycle(ctx)
	}
	if err != nil {
		return volumeError("Recycle", pvName, err)
	}
	return nil
}

// newRecycling refuses volumes that must not be emptied, as far as the volume
// itself says so.
func (p *plugin) newRecycling(pvName string, spec *volume.Spec) (*recycling, error) {
	source, err := p.Source(spec)
	if err != nil {
		return nil, err
	}
	if err := recycler.CheckReleased(pvName, spec); err != nil {
		return nil, err
	}
	if pluginbase.ReadOnly(spec) {
		return nil, recycler.ReadOnly("accessModes")
	}
	if err := pluginbase.CheckFilesystem(spec, "hostPath"); err != nil {
		return nil, err
	}
	if err := validation.CheckAbsolutePath("hostPath.path", source.Path); err != nil {
		return nil, err
	}
	pv := spec.PersistentVolume.DeepCopy()
	if err := p.checkHere(pv, p.ownLabels()); err != nil {
		return nil, volume.NothingDone(err)
	}
	config, path := p.config.Recycle, filepath.Clean(source.Path)
	r := &recycling{config: config, release: release{plugin: p, pv: pv, path: path}, Recycling: recycler.Recycling{
		PV: pv, Source: path, On: sharedirs.Disk, Action: config.Action, Timeout: config.timeout(pv), ProgressEvery: config.ProgressEvery,
	}}
	r.VerifyUnused = r.verifyUnused
	return r, nil
}

func (p *plugin) ownLabels() map[string]string {
	if name := p.config.Provision.Hostname; name != "" {
		return map[string]string{v1.LabelHostname: name}
	}
	return nil
}

func (r *recycling) recycle(ctx context.Context) error {
	return r.Run(ctx, func(ctx context.Context) error {
		return r.plugin.do(ctx, "recycle "+r.path, func() error { return r.empty(ctx) })
	})
}

// empty may outlive the call to Recycle.
func (r *recycling) empty(ctx context.Context) error {
	root, path, err := r.open()
	if err != nil {
		return volume.NothingDone(err)
	}
	defer root.Close()
	return r.Empty(ctx, root, func(ctx context.Context, options wipe.Options) error {
		archives, err := r.openArchive(path)
		if err != nil {
			return volume.NothingDone(err)
		}
		defer archives.Close()
		return r.Move(ctx, root, archives, options)
	})
}

// open opens the volume's directory, and returns where it really lies, which must
// be where volumes may be emptied.
func (r *recycling) open() (root *os.File, path string, err error) {
	root, err = os.OpenFile(r.path, unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, "", err
	}
	if path, err = pathOf(root); err == nil {
		err = r.mayEmpty(path)
	}
	if err != nil {
		root.Close()
		return nil, "", err
	}
	return root, path, nil
}

func (r *recycling) mayEmpty(path string) error {
	pods, err := r.plugin.podsDir()
	if err != nil {
		return err
	}
	if pathin.Overlap(pods, path) {
		return volume.Invalid("hostPath.path", "%q holds the volumes of this node's pods (%s), or lies in them, and is not emptied", path, pods)
	}
	for _, dir := range r.config.Below {
		real, err := filepath.EvalSymlinks(dir)
		if err == nil && pathin.Strictly(real, path) {
			return nil
		}
	}
	return volume.Invalid("hostPath.path", "%q is not strictly below a directory in which this node empties volumes (%v); use reclaim policy %s, or have its administrator allow it", path, r.config.Below, v1.PersistentVolumeReclaimRetain)
}

// openArchive opens the directory for archives, if it is safe from others and
// apart from the volume.
func (r *recycling) openArchive(volumePath string) (*os.File, error) {
	err := os.Mkdir(r.config.Archive, 0o700)
	if err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	dir, err := os.OpenFile(r.config.Archive, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := r.checkArchive(dir, volumePath); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

func (r *recycling) checkArchive(dir *os.File, volumePath string) error {
	path, err := pathOf(dir)
	if err != nil {
		return err
	}
	if pathin.Overlap(path, volumePath) {
		return volume.Invalid("hostPath.path", "%q and the archive %q lie within one another, so that the next claim would see what is archived", volumePath, path)
	}
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Fstat(int(dir.Fd()), &st) }); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	switch {
	case st.Mode&0o022 != 0:
		return fmt.Errorf("%s has mode %04o: only its owner may write in the directory for archives (chmod go-w)", path, st.Mode&0o7777)
	case st.Uid != 0 && st.Uid != uint32(unix.Geteuid()):
		return fmt.Errorf("%s belongs to user %d: the directory for archives must be root's or the agent's own", path, st.Uid)
	}
	return nil
}
