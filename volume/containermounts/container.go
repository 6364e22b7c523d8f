package containermounts

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
)

// RuntimeFeatures is what a container runtime on this node can do. Its zero
// value is a runtime of which nothing is known.
type RuntimeFeatures struct {
	// RecursiveReadOnly: it makes a mount and all mounts below it read-only;
	// this takes mount_setattr(2), Linux 5.12. The runtime says so itself: CRI's
	// RuntimeHandlerFeatures.recursive_read_only_mounts, and mountOptions of
	// `runc features`, which lists "rro".
	RecursiveReadOnly bool
	// BindMountOptions: it makes mounts with [Mount].BindMountOptions.
	// OCI runtimes do; of one behind CRI its RuntimeFeatures say so (Kubernetes
	// 1.37).
	BindMountOptions bool
}

// Options is what [Binder.Mounts] needs to know about a
// container beyond its pod. The zero value is a container without environment
// and user namespace. It is only read.
type Options struct {
	// Env is the container's environment as it will run, resolved: subPathExpr
	// is expanded with it.
	Env map[string]string
	// UIDMappings and GIDMappings are the pod's user namespace's; empty: it has
	// none.
	UIDMappings, GIDMappings []mount.IDMapping
	// Runtime is what the container's runtime can do.
	Runtime RuntimeFeatures
}

// Mount is one bind mount that a container's runtime must make.
// [OCIMounts], [CRIMounts] and [DockerMountArgs] say it in a runtime's words.
type Mount struct {
	// Volume is the pod's name of the volume.
	Volume string
	// Source is what to bind, on the host, and Destination where, in the
	// container: absolute and clean. Both may have links on their way, which
	// for the destination the runtime must resolve inside the container's root.
	Source, Destination string
	// SubPath is the part of the volume that Source is, subPathExpr expanded;
	// empty: the whole volume.
	SubPath string
	// ReadOnly: the container cannot write, since its volumeMount, the claim, the
	// volume or the mount of it says so. RecursiveReadOnly: nor to mounts inside.
	ReadOnly, RecursiveReadOnly bool
	// BindMountOptions are what the mount must have besides (KEP-5855): noexec,
	// nodev, nosuid. The mounts inside keep their own.
	BindMountOptions []string
	Propagation      mount.Propagation
	// SELinuxRelabel: the runtime gives the files the container's label.
	SELinuxRelabel bool
	// SELinuxPrivate: with docker that is a label of this container alone (Z), instead of one
	// that all containers share (z). It is false, since containers of a pod may share a
	// volume; whoever knows that they do not may set it. Other runtimes take the
	// container's own label anyway.
	SELinuxPrivate bool
	// File: Source is no directory, and the mount point must be none either.
	File bool
	// Locked are the flags of the mount that Source lies in, such as nosuid,
	// nodev, noexec and ro. A bind has them as well, but a runtime that changes
	// one flag of its bind must repeat them: else they are lost (kubernetes
	// issue 124863), or in a user namespace the change is refused.
	Locked []string
	// With UIDMappings and GIDMappings the runtime makes an idmapped mount; empty: a
	// plain one. They are the pod's user namespace's, for volumes of every kind, as
	// in Kubernetes (KEP-127).
	UIDMappings, GIDMappings []mount.IDMapping
}

// Device is one device that a container's runtime must make.
type Device struct {
	// Volume is the pod's name of the volume.
	Volume string
	// Source is a path, or a link, that leads to the device on the host, and
	// Destination its absolute, clean path in the container.
	Source, Destination string
	// Permissions are the device cgroup's, "rwm", or "r" where the claim is
	// read-only, or the PersistentVolume offers nothing but ReadOnlyMany.
	Permissions string
}

// places are where a pod's volumes are: a [Binder], or an agent's own directories.
type places interface {
	// mountedVolume finds a volume of the pod.
	mountedVolume(pod *v1.Pod, name string) (mountedVolume, error)
	// source finds the file to bind.
	source(ctx context.Context, c *container, p *planned) error
	// openSource opens what a container is shown, inside reach.
	openSource(p *planned) (*os.File, error)
	// reach calls f, which looks at a path and may hang, as long as ctx lasts.
	reach(ctx context.Context, path string, f func() error) error
}

// container is one container whose mounts are asked for.
type container struct {
	places  places
	pod     *v1.Pod
	spec    *v1.Container
	field   string // where the pod has it
	options Options
}

// planned is a mount on its way, and its volume.
type planned struct {
	Mount
	index  int // among the container's volumeMounts
	asked  *v1.VolumeMount
	volume mountedVolume
	fixed  bool // what Source lies in is mounted read-only
}

func (c *container) mounts(ctx context.Context) ([]Mount, error) {
	all, err := c.plan()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, p := range all {
		if err := c.places.source(ctx, c, p); err != nil {
			errs = append(errs, p.volume.failed(err))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if err := c.makeNestedPoints(ctx, all); err != nil {
		return nil, err
	}
	mounts := make([]Mount, len(all))
	for i, p := range all {
		mounts[i] = p.Mount
	}
	return mounts, nil
}

// plan looks at everything that needs no I/O.
func (c *container) plan() ([]*planned, error) {
	var errs []error
	all := make([]*planned, 0, len(c.spec.VolumeMounts))
	for i := range c.spec.VolumeMounts {
		p, err := c.planOne(i)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, p)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b *planned) int {
		return slices.Compare(elements(a.Destination), elements(b.Destination))
	})
	return all, c.checkDestinations()
}

func elements(path string) []string { return strings.Split(path, "/") }

func (c *container) planOne(i int) (*planned, error) {
	asked := &c.spec.VolumeMounts[i]
	v, err := c.places.mountedVolume(c.pod, asked.Name)
	if err != nil {
		return nil, err
	}
	if v.isBlock() {
		return nil, v.failed(volume.Invalid(c.mountField(i)+".name", "volume %q is a raw device; use volumeDevices for it", asked.Name))
	}
	p := &planned{index: i, asked: asked, volume: v}
	p.Mount = Mount{
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
