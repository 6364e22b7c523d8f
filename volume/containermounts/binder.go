//go:build linux

package containermounts

import (
	"context"
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
)

// Binder finds out what containers must be shown of their pods' volumes, and binds
// the sub-paths among it. All methods are safe for concurrent use.
type Binder struct {
	host    *volume.Host
	plugins *volume.VolumePluginMgr
	volumes Volumes

	reaches blockingcall.Group[string] // looks at paths that may hang, and binds of the files found
	binding keylock.Map[SubPaths]
}

// New returns a binder for the volumes below the host's root directory. It does no
// I/O and keeps its arguments.
func New(host *volume.Host, plugins *volume.VolumePluginMgr, volumes Volumes) *Binder {
	return &Binder{host: host, plugins: plugins, volumes: volumes}
}

// Mounts returns what the runtime must show to one container, by name, of a
// declared pod: a mount for each of its volumeMounts, a device for each of its
// volumeDevices. Mounts come in the order in which they must be made, parent
// directories first. Init and ephemeral containers are containers like any other.
// The results are the caller's.
//
// Sub-paths are made where they are missing, and bound to a place of the pod's own,
// from where the runtime takes them. Mount points of volumes inside others are made
// as well. The package comment has more.
//
// Errors, of several volumes joined (errors.Join):
//
//   - [Volumes]' errors, for a single volume as a *volume.Error
//   - [ErrUnknownContainer]: no container has the name
//   - *volume.InvalidSpecError: a volumeMount or container that cannot be
//   - [ErrRuntimeLacks]: the runtime cannot make a mount recursively read-only, or
//     with its options
//   - [fs.ErrNotExist]: a mount point is missing in a read-only volume
//   - *subpath.EscapeError: a sub-path leads out of its volume
//   - *subpath.ReadOnlyError: a sub-path is missing and cannot be made
//
// A server that does not answer is waited for until ctx ends. The call may be
// concurrent, also for the same container, and repeated: a bind stays, unless the
// volume has something else there by now.
func (b *Binder) Mounts(ctx context.Context, podUID types.UID, containerName string, options Options) ([]Mount, []Device, error) {
	c, err := b.containerOf(podUID, containerName, options)
	if err != nil {
		return nil, nil, err
	}
	mounts, err := c.mounts(ctx)
	devices, deviceErr := c.devices()
	if err := errors.Join(err, deviceErr); err != nil {
		return nil, nil, err
	}
	return mounts, devices, nil
}

// containerOf finds a container of a pod that is declared.
func (b *Binder) containerOf(podUID types.UID, name string, options Options) (*container, error) {
	pod, err := b.volumes.DeclaredPod(podUID)
	if err != nil {
		return nil, err
	}
	spec, field := findContainer(pod, name)
	if spec == nil {
		return nil, unknownContainer(podName(pod), name, containerNames(pod))
	}
	c := &container{places: b, pod: pod, spec: spec, field: field, options: options}
	return c, c.checkMappings()
}

// mountedVolume finds a volume of the pod, which must be mounted.
func (b *Binder) mountedVolume(pod *v1.Pod, name string) (mountedVolume, error) {
	v := mountedVolume{name: name, record: &mountrecord.Record{PodUID: pod.UID, Pod: podName(pod)}}
	i := slices.IndexFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
	if i >= 0 { // else validation has let it pass, and no volume is mounted for it
		v.claim = pod.Spec.Volumes[i].PersistentVolumeClaim
	}
	record, err := b.volumes.MountedVolume(pod.UID, name)
	if err != nil {
		return v, v.failed(err)
	}
	v.record = record
	// A restart forgets the mounter, and the record has no attributes: what says
	// how a volume is mounted is its spec, and the plugin needs no I/O for it.
	plugin, err := b.plugins.FindPluginByName(v.record.Plugin)
	if err != nil {
		return v, v.failed(err)
	}
	if v.isBlock() {
		v.attributes.ReadOnly = offersOnlyReading(v.record.PersistentVolume)
		return v, nil
	}
	mounter, err := plugin.NewMounter(v.record.Spec(), pod)
	if err != nil {
		return v, v.failed(err)
	}
	v.attributes = mounter.GetAttributes()
	return v, nil
}

// offersOnlyReading reports whether a PersistentVolume has no access mode but
// ReadOnlyMany.
func offersOnlyReading(pv *v1.PersistentVolume) bool {
	other := func(m v1.PersistentVolumeAccessMode) bool { return m != v1.ReadOnlyMany }
	return pv != nil && len(pv.Spec.AccessModes) > 0 && !slices.ContainsFunc(pv.Spec.AccessModes, other)
}
