package emptydirs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/validation"
)

const (
	// FSTypeMemory and FSTypeHugePages are the file systems of the media.
	FSTypeMemory    = "tmpfs"
	FSTypeHugePages = "hugetlbfs"
	// noSwap keeps a tmpfs out of swap. Linux has it since 6.4, and never for
	// a tmpfs that belongs to a user namespace.
	noSwap = "noswap"
)

// request returns the mount that a medium needs. The medium must not be the
// default one.
func (o Options) request(dir string) (mount.Request, error) {
	request := mount.Request{Target: dir, Options: []string{fmt.Sprintf("mode=%04o", mountMode(*o.Mode))}}
	if o.SizeBytes > 0 {
		request.Options = append(request.Options, sizeOption(o.SizeBytes))
	}
	if o.Medium == v1.StorageMediumMemory {
		request.Source, request.FSType = FSTypeMemory, FSTypeMemory
		request.Options = append(request.Options, noSwap)
		return request, nil
	}
	pageSize, err := validation.HugePageSize("emptyDir.medium", o.Medium)
	if err != nil {
		return mount.Request{}, err
	}
	if o.SizeBytes > 0 && o.SizeBytes < pageSize {
		return mount.Request{}, volume.Invalid("emptyDir.sizeLimit",
			"%d bytes are less than one page of medium %s; ask for a multiple of the page size", o.SizeBytes, o.Medium)
	}
	request.Source, request.FSType = FSTypeHugePages, FSTypeHugePages
	request.Options = append(request.Options, "pagesize="+strconv.FormatInt(pageSize, 10))
	return request, nil
}

// mountMode is what a mount's option says; what else the mode has comes later.
func mountMode(mode fs.FileMode) uint32 {
	bits := uint32(mode.Perm())
	if mode&fs.ModeSticky != 0 {
		bits |= unix.S_ISVTX
	}
	return bits
}

func sizeOption(bytes int64) string { return "size=" + strconv.FormatInt(bytes, 10) }

// mountMedium mounts the request on a directory on which nothing is mounted, after a call of
// before. It does so without noswap where the kernel refuses it: only trying tells.
func mountMedium(ctx context.Context, m mount.Interface, request mount.Request, same func(mount.Entry) bool, before func() error) error {
	err := podmount.MountOn(ctx, m, request.Target, func() error {
		if err := before(); err != nil {
			return volume.NothingDone(err)
		}
		return mount.Mount(ctx, m, request)
	})
	if !slices.Contains(request.Options, noSwap) || !refusedOption(err) {
		return err
	}
	request.Options = slices.DeleteFunc(slices.Clone(request.Options), func(o string) bool { return o == noSwap })
	_, err = podmount.SetUp(ctx, m, request, same)
	return err
}

func refusedOption(err error) bool {
	return !volume.IsUncertain(err) && (errors.Is(err, unix.EINVAL) || errors.Is(err, mount.ErrBadOption))
}

// Options say what the directory shall be.
type Options struct {
	// Medium is "" for the disk that holds the pod's directory, "Memory" for a
	// tmpfs, "HugePages-<size>" for a hugetlbfs with pages of that size.
	Medium v1.StorageMedium
	// SizeBytes limits a tmpfs or hugetlbfs; 0 leaves it to the kernel (half
	// of the memory, and all huge pages). A plain directory has no limit by it.
	SizeBytes int64
	// Limit limits a plain directory. It is called at each set-up, and at the first one
	// before anything is in the directory. Its error fails the set-up. It may be nil.
	Limit func(dir string) error
	// Mode is the directory's, permission bits, sticky and setgid, whatever the
	// umask; nil means 0777, and 1777 on a tmpfs.
	Mode *fs.FileMode
	// GID gets the directory, with rwx and the setgid bit, so that new files in it
	// belong to the group too; nil leaves the process's group.
	GID *int64
	// Wrapped says that another kind of volume is built in the directory.
	Wrapped bool
}

// defaultMode is what every container may use, whatever its user. A tmpfs is sticky,
// too, as the kernel makes it and the kubelet leaves it: Kubernetes' own tests ask for
// that.
func (o Options) defaultMode() fs.FileMode {
	if o.Medium == v1.StorageMediumMemory {
		return 0o777 | fs.ModeSticky
	}
	return 0o777
}

// normal checks the options and fills in what they leave open.
func (o Options) normal() (Options, error) {
	mode := o.defaultMode()
	if o.Mode != nil {
		mode = *o.Mode
	}
	if mode&^(fs.ModePerm|fs.ModeSticky|fs.ModeSetgid) != 0 {
		return o, volume.Invalid("mode", "%v has bits other than rwx, sticky and setgid", mode)
	}
	if o.SizeBytes < 0 {
		return o, volume.Invalid("emptyDir.sizeLimit", "must not be negative, is %d", o.SizeBytes)
	}
	if o.GID != nil {
		if *o.GID < 0 || *o.GID >= 1<<32-1 {
			return o, volume.Invalid("fsGroup", "%d is not a group id", *o.GID)
		}
		mode |= fs.ModeSetgid | 0o070
	}
	o.Mode = &mode
	return o, nil
}

// noLimit is the size that leaves it to the kernel.
const noLimit int64 = 0

// MemorySize is the size of a pod's tmpfs, as the kubelet's since Kubernetes 1.22
// (SizeMemoryBackedVolumes): the least of the given limits, the pod's memory
// limit and the node's memory for pods. 0: none of them is known. Limits of 0 are
// none, a host without [volume.AllocatableGetter] does not tell its memory, and a
// pod with an unlimited container has no limit. The error is that getter's; where
// another limit is known, that stands alone while the getter fails.
func MemorySize(ctx context.Context, host volume.VolumeHost, pod *v1.Pod, limits ...int64) (int64, error) {
	own := Least(append(limits, podMemoryLimit(pod))...)
	allocatable, err := allocatableMemory(ctx, host)
	if err != nil && own == noLimit {
		return noLimit, err
	}
	return Least(own, allocatable), nil
}

func allocatableMemory(ctx context.Context, host volume.VolumeHost) (int64, error) {
	node, err := volume.Role[volume.AllocatableGetter](host)
	if _, missing := errors.AsType[*volume.MissingRoleError](err); missing {
		return noLimit, nil
	}
	if err != nil {
		return noLimit, err
	}
	allocatable, err := node.GetAllocatable(ctx)
	if err != nil {
		return noLimit, fmt.Errorf("what the node has for pods cannot be told, and nothing else limits the volume in memory: %w", err)
	}
	return max(allocatable.Memory().Value(), noLimit), nil
}

// podMemoryLimit is the most memory that the pod may use, if everything in it is
// limited: its own limit, or the larger of two sums. One is of its containers.
// The other is of an init container and those that started before it and stay.
func podMemoryLimit(pod *v1.Pod) int64 {
	if pod.Spec.Resources != nil {
		if limit, ok := pod.Spec.Resources.Limits[v1.ResourceMemory]; ok {
			return max(limit.Value(), noLimit)
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Resources.Limits.Memory().Sign() <= 0 {
			return noLimit
		}
	}
	var peak, staying int64
	for _, c := range pod.Spec.InitContainers {
		limit := c.Resources.Limits.Memory().Value()
		peak = max(peak, staying+limit)
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			staying += limit
		}
	}
	for _, c := range pod.Spec.Containers {
		staying += c.Resources.Limits.Memory().Value()
	}
	return max(peak, staying)
}

// Least returns the smallest limit of those that are set, which are not 0.
func Least(limits ...int64) int64 {
	result := noLimit
	for _, l := range limits {
		if l != noLimit && (result == noLimit || l < result) {
			result = l
		}
	}
	return result
}
