package nfs

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/recyclerpod"
)

var _ volume.RecyclableVolumePlugin = (*plugin)(nil)

// recycling is the emptying of one released volume.
type recycling struct {
	plugin   *plugin
	pv       *v1.PersistentVolume // a copy
	export   export
	options  []string
	timeout  time.Duration
	releases volume.ReleaseVerifier

	mu     sync.Mutex
	events volume.RecycleEventRecorder // nil once there is no listener any more
}

// Recycle implements [volume.RecyclableVolumePlugin]; [RecycleConfig] says how.
//
//   - The host must have the role [volume.ReleaseVerifier], whose refusal is returned and
//     ends a recycling under way. It also needs [volume.PodRunner], or a Config that
//     enables the embedded recycler. Else the error is a *[volume.MissingRoleError].
//   - The spec must be the stored PersistentVolume's, with UIDs: only the volume's own
//     claim must have left it.
//   - An embedded recycler's error is a *[reclaim.DryRunError], an *[reclaim.IncompleteError]
//     that says how far it came, or the obstacle, such as [volume.ErrInUse] or
//     [ErrHoldsVolumes]. Its mount has the spec's mount options; a pod mounts without
//     them, as in Kubernetes.
//   - Record is not called after the return.
func (p *plugin) Recycle(ctx context.Context, pvName string, spec *volume.Spec, record volume.RecycleEventRecorder) error {
	if err := p.recycle(ctx, pvName, spec, record); err != nil {
		return &volume.Error{Op: "Recycle", Plugin: PluginName, Volume: pvName, Err: err}
	}
	return nil
}

func (p *plugin) recycle(ctx context.Context, pvName string, spec *volume.Spec, record volume.RecycleEventRecorder) error {
	r, err := p.newRecycling(pvName, spec)
	if err != nil {
		return err
	}
	if r.releases, err = p.releaseVerifier(); err != nil {
		return err
	}
	r.events = record
	defer r.stopEvents()
	if p.config.Recycle.Embedded.Enabled {
		return r.recycleHere(ctx)
	}
	pods, err := role[volume.PodRunner](p.Host,
		"give the volume host one to have a pod empty the volume, or enable nfs.Config.Recycle.Embedded to have this process do it")
	if err != nil {
		return err
	}
	return r.recycleByPod(ctx, pods)
}

func (p *plugin) releaseVerifier() (volume.ReleaseVerifier, error) {
	return role[volume.ReleaseVerifier](p.Host,
		"nothing is deleted without one: give the volume host one (Host.Releases), such as release.Verifier")
}

// role is [volume.Role] with advice for a host that lacks it.
func role[R any](host volume.VolumeHost, advice string) (R, error) {
	r, err := volume.Role[R](host)
	if missing, ok := errors.AsType[*volume.MissingRoleError](err); ok {
		err = &volume.MissingRoleError{Role: missing.Role, Field: missing.Field, Advice: advice}
	}
	return r, volume.NothingDone(err)
}

// newRecycling refuses volumes that must not be emptied, as far as the volume
// itself says so.
func (p *plugin) newRecycling(pvName string, spec *volume.Spec) (*recycling, error) {
	source, err := p.Source(spec)
	if err != nil {
		return nil, err
	}
	pv := spec.PersistentVolume
	switch {
	case spec.Volume != nil || pv == nil || pv.Name != pvName:
		return nil, volume.Invalid("volume", "is not PersistentVolume %q; nothing else can be recycled", pvName)
	case pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimRecycle:
		return nil, volume.Invalid("persistentVolumeReclaimPolicy", "is %q, not %q", pv.Spec.PersistentVolumeReclaimPolicy, v1.PersistentVolumeReclaimRecycle)
	case recyclerpod.ReleaseID(pv) == "":
		return nil, volume.Invalid("claimRef", "the UIDs of the PersistentVolume and of the claim that has left it are needed")
	}
	if err := pluginbase.CheckFilesystem(spec, "nfs"); err != nil {
		return nil, err
	}
	e, err := parseExport(source)
	if err != nil {
		return nil, err
	}
	options, err := pluginbase.Options(spec, false)
	if err != nil {
		return nil, err
	}
	if source.ReadOnly || pluginbase.ReadOnly(spec) || slices.Contains(options, "ro") {
		return nil, volume.Invalid("nfs.readOnly", "the PersistentVolume can only be read, so no claim has written what is in it; use reclaim policy %s", v1.PersistentVolumeReclaimRetain)
	}
	return &recycling{plugin: p, pv: pv.DeepCopy(), export: e, options: options, timeout: p.config.Recycle.timeout(pv)}, nil
}

// verify asks whether the data may be destroyed. It is asked right before each
// destruction, however shortly before it was asked, and all the time during it.
func (r *recycling) verify(ctx context.Context) error {
	return volume.NothingDone(r.releases.VerifyReleased(ctx, r.pv.DeepCopy()))
}

// record tells of progress, while there is a listener.
func (r *recycling) record(eventType, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.events != nil {
		r.events(eventType, message)
	}
}

func (r *recycling) stopEvents() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = nil
}
