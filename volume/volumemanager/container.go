package volumemanager

import (
	"context"
	"errors"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/volume"
)

// Propagation is [mount.Propagation], and IDMapping [host.IDMapping]: of the
// latter ContainerID is the first id in the container, and HostID on the host.
type (
	Propagation = mount.Propagation
	IDMapping   = host.IDMapping
)

// The propagations, with the pod's word for each.
const (
	PropagationPrivate = mount.PropagationPrivate // None: in neither direction
	PropagationSlave   = mount.PropagationSlave   // HostToContainer
	PropagationShared  = mount.PropagationShared  // Bidirectional
)

// RuntimeFeatures is what a container runtime on this node can do. Its zero
// value is a runtime of which nothing is known.
type RuntimeFeatures struct {
	// RecursiveReadOnly: it makes a mount and all mounts below it read-only;
	// this takes mount_setattr(2), Linux 5.12. The runtime says so itself: CRI's
	// RuntimeHandlerFeatures.recursive_read_only_mounts, and mountOptions of
	// `runc features`, which lists "rro".
	RecursiveReadOnly bool
	// BindMountOptions: it makes mounts with [ContainerMount].BindMountOptions.
	// OCI runtimes do; of one behind CRI its RuntimeFeatures say so (Kubernetes
	// 1.37).
	BindMountOptions bool
}

// ContainerOptions is what [Manager.ContainerMounts] needs to know about a
// container beyond its pod. The zero value is a container without environment
// and user namespace. It is only read.
type ContainerOptions struct {
	// Env is the container's environment as it will run, resolved: subPathExpr
	// is expanded with it.
	Env map[string]string
	// UIDMappings and GIDMappings are those of the pod's user namespace; empty:
	// it has none.
	UIDMappings, GIDMappings []IDMapping
	// Runtime is what the container's runtime can do.
	Runtime RuntimeFeatures
}

// ContainerMount is one bind mount that a container's runtime must make.
// Packages like runtimemounts turn it into what a runtime understands.
type ContainerMount struct {
	// Volume is the pod's name of the volume.
	Volume string
	// Source is what to bind, on the host, and Destination where, in the
	// container: absolute and clean. Both may have links on their way, which
	// for the destination the runtime must resolve inside the container's root.
	Source, Destination string
	// SubPath is the part of the volume that Source is, subPathExpr expanded;
	// empty: the whole volume.
	SubPath string
	// ReadOnly: the container cannot write, since its volumeMount, the claim,
	// the volume or the mount of it says so. RecursiveReadOnly: nor to what is
	// mounted inside.
	ReadOnly, RecursiveReadOnly bool
	// BindMountOptions are what the mount must have besides (KEP-5855): noexec,
	// nodev, nosuid. The mounts inside keep their own.
	BindMountOptions []string
	Propagation      Propagation
	// SELinuxRelabel: the runtime gives the files the container's label.
	SELinuxRelabel bool
	// File: Source is no directory, and the mount point must be none either.
	File bool
	// Locked are the flags of the mount that Source lies in, such as nosuid,
	// nodev, noexec and ro. A bind has them as well, but a runtime that changes
	// one flag of its bind must repeat them: else they are lost (kubernetes
	// issue 124863), or in a user namespace the change is refused.
	Locked []string
	// UIDMappings and GIDMappings are those by which the runtime makes an
	// idmapped mount; empty: a plain one. They are those of the pod's user
	// namespace, for volumes of every kind, as in Kubernetes (KEP-127).
	UIDMappings, GIDMappings []IDMapping
}

// ContainerDevice is one device that a container's runtime must make.
type ContainerDevice struct {
	// Volume is the pod's name of the volume.
	Volume string
	// Source is a path, or a link, that leads to the device on the host, and
	// Destination its absolute, clean path in the container.
	Source, Destination string
	// Permissions are those of the device cgroup, "rwm", or "r" where the claim
	// is read-only, or the PersistentVolume offers nothing but ReadOnlyMany.
	Permissions string
}

// ContainerMounts returns what the runtime must show to one container, by name,
// of a declared pod: a mount for each of its volumeMounts, a device for each of
// its volumeDevices. Mounts come in the order in which they must be made, those
// of parent directories first. Init and ephemeral containers are containers
// like any other. The results are the caller's.
//
// Sub-paths are made where they are missing, and bound to a place of the pod's
// own, from where the runtime takes them. Mount points of volumes inside others
// are made as well. The package comment has more.
//
// Each of the volumes must be mounted ([Manager.SetUpPod]). One that is not is a
// *volume.Error with a *[NotMountedError] that says what it waits for. A
// volumeMount or container that cannot be is a *volume.InvalidSpecError, one
// that the runtime cannot make recursively read-only, or with its options,
// [ErrRuntimeLacks], a mount point that is missing in a read-only volume
// [fs.ErrNotExist]. The errors of a sub-path are those of package
// util/subpath: *subpath.EscapeError where it leads out of its volume,
// *subpath.ReadOnlyError where it is missing and cannot be made. Faults of
// several volumes are joined (errors.Join). A name that no container has is
// [ErrUnknownContainer], a pod that was never declared [ErrUnknownPod], one
// that was deleted [ErrWithdrawn]. Before Run has recovered, the call waits for
// it, as [Manager.SetUpPod] does; after Run the error is [ErrStopped].
//
// What may hang on a server that does not answer is waited for until ctx ends.
// It is safe to call it concurrently, also for the same container, and to repeat
// it: what is bound already stays, unless the volume has something else there by
// now.
func (m *Manager) ContainerMounts(ctx context.Context, podUID types.UID, container string, options ContainerOptions) ([]ContainerMount, []ContainerDevice, error) {
	if err := m.waitForRun(ctx); err != nil {
		return nil, nil, err
	}
	c, err := m.containerOf(podUID, container, options)
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

// container is one container whose mounts are asked for.
type container struct {
	m       *Manager
	pod     *v1.Pod
	spec    *v1.Container
	field   string // where the pod has it
	options ContainerOptions
}

// containerMount is a mount on its way, and what it is of.
type containerMount struct {
	ContainerMount
	index  int // among the container's volumeMounts
	asked  *v1.VolumeMount
	volume mountedVolume
	fixed  bool // what Source lies in is mounted read-only
}

func (c *container) mounts(ctx context.Context) ([]ContainerMount, error) {
	planned, err := c.plan()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, p := range planned {
		if err := c.source(ctx, p); err != nil {
			errs = append(errs, p.volume.failed(err))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if err := c.makeNestedPoints(ctx, planned); err != nil {
		return nil, err
	}
	mounts := make([]ContainerMount, len(planned))
	for i, p := range planned {
		mounts[i] = p.ContainerMount
	}
	return mounts, nil
}

// plan looks at everything that needs no I/O.
func (c *container) plan() ([]*containerMount, error) {
	var errs []error
	planned := make([]*containerMount, 0, len(c.spec.VolumeMounts))
	for i := range c.spec.VolumeMounts {
		p, err := c.planOne(i)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		planned = append(planned, p)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	slices.SortStableFunc(planned, func(a, b *containerMount) int {
		return slices.Compare(elements(a.Destination), elements(b.Destination))
	})
	return planned, c.checkDestinations()
}

func elements(path string) []string { return strings.Split(path, "/") }

func (c *container) planOne(i int) (*containerMount, error) {
	asked := &c.spec.VolumeMounts[i]
	v, err := c.m.mountedVolume(c.pod, asked.Name)
	if err != nil {
		return nil, err
	}
	if v.isBlock() {
		return nil, v.failed(volume.Invalid(c.mountField(i)+".name", "volume %q is a raw device; use volumeDevices for it", asked.Name))
	}
	p := &containerMount{index: i, asked: asked, volume: v}
	p.ContainerMount = ContainerMount{
		Volume: asked.Name, Destination: inContainer(asked.MountPath),
		ReadOnly:       asked.ReadOnly || v.readOnly(),
		SELinuxRelabel: v.relabelled(),
		UIDMappings:    slices.Clone(c.options.UIDMappings), GIDMappings: slices.Clone(c.options.GIDMappings),
	}
	if p.Propagation, err = c.propagation(i); err != nil {
		return nil, v.failed(err)
	}
	if p.RecursiveReadOnly, err = c.recursiveReadOnly(i); err != nil {
		return nil, v.failed(err)
	}
	if p.BindMountOptions, err = c.bindMountOptions(i); err != nil {
		return nil, v.failed(err)
	}
	if p.SubPath, err = c.subPath(i); err != nil {
		return nil, v.failed(err)
	}
	return p, nil
}
