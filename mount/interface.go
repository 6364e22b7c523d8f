package mount

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	k8smount "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/fstypes"
	"github.com/podvol/podvol/mount/internal/mountopt"
	"github.com/podvol/podvol/util/secretopt"
	"github.com/podvol/podvol/util/tracing"
)

// Interface is the mounter of k8s.io/mount-utils, so that every mounter written for it
// fits. A program calls host.Wrap once for such a mounter. To mount or unmount, callers in
// this module use [Mount] and [Unmount] and never its methods.
type Interface = k8smount.Interface

// MountPoint is one line of [Interface].List.
type MountPoint = k8smount.MountPoint

// Request asks for one mount. Mounters only read it.
type Request struct {
	// Source is a device, server:/path or directory. For file systems without a source it
	// is any word for the mount table. A bind of "/proc/<pid>/fd/<number>" shows the
	// opened file, even if the file's name leads elsewhere by now.
	Source string
	// Target is the absolute path of an existing directory, or of an existing file to
	// bind a file. It must not be a symbolic link.
	Target string
	// FSType is the file system's type as mount(8) knows it; empty for a bind
	// mount and a remount.
	FSType string
	// Options are mount(8)'s, one to an element or separated by commas: "ro", "bind",
	// "size=1048576". See host.Mounter for the supported ones.
	Options []string
	// Sensitive are options that must never be shown, such as passwords. They are applied
	// after Options. If a helper mounts, it gets user and password for CIFS and the key
	// for Ceph unseen. Other helpers take options only in the argument list, which every
	// user of the node can read.
	Sensitive []string
}

// String formats the request as a mount(8) command line with every sensitive
// option masked.
func (r Request) String() string {
	return "mount " + strings.Join(r.Args(), " ")
}

const masked = "<masked>"

// Args are the arguments of mount(8), sensitive options masked.
func (r Request) Args() []string {
	options := slices.Clone(r.Options)
	if len(r.Sensitive) > 0 {
		options = append(options, masked)
	}
	var args []string
	if r.FSType != "" {
		args = append(args, "-t", r.FSType)
	}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	if r.Source != "" {
		args = append(args, r.Source)
	}
	return append(args, r.Target)
}

// ContextMounter is a mounter that can be interrupted, and that forces an unmount where
// its caller wants that. host.Wrap makes one of any other mounter.
type ContextMounter interface {
	Interface
	// MountContext mounts. Its errors are *[Error] values. It may be called
	// from several goroutines. When ctx ends first it returns promptly, and
	// the error says by Uncertain whether the mount may still appear.
	MountContext(ctx context.Context, request Request) error
	// UnmountContext unmounts the topmost mount at target by the rungs that options
	// allow. It returns the last rung it tried. If target is not mounted, the error is an
	// *[Error] with the cause [ErrNotMounted].
	UnmountContext(ctx context.Context, target string, options UnmountOptions) (Rung, error)
}

// UnmountOptions select the rungs of the unmount. The zero value tries the normal unmount
// only and waits for it as long as the context allows.
type UnmountOptions struct {
	// ForceAfter is the time after which a forced unmount is tried; 0 means never. Until
	// then the normal unmount may take that long, and is repeated while the mount is only
	// busy. A forced one is umount2(2) MNT_FORCE, then a normal one again. Both are
	// repeated until LazyAfter. [Rung.Loss] says which data may be lost.
	//
	// MNT_FORCE makes the kernel fail the requests of all mounts of the file system, even
	// if the server is alive. So in these cases only the normal unmount is repeated:
	//
	//   - The mount table (of this mount namespace) has a further mount of the same
	//     [Entry].Device that is not being unmounted by the same mounter and as far on
	//     the ladder.
	//   - The server or daemon answers. It counts as silent if a call, or a statfs(2),
	//     has waited in vain for half of ForceAfter, or has failed as without a
	//     connection.
	//   - For this type force does nothing more.
	//
	// While no answer comes, each later forced unmount is made after a longer wait for
	// one, up to that half.
	//
	// Without LazyAfter both are repeated until twice ForceAfter, and only if all further
	// mounts of the file system are being unmounted too.
	ForceAfter time.Duration
	// LazyAfter is the time from the start after which the mount is detached
	// (MNT_DETACH); 0 means never. A file system on a block device is never detached
	// lazily: its superblock would live on unseen.
	LazyAfter time.Duration
	// Holders asks for the processes that hold a busy mount, at most ten, in
	// [Error].Holders. The search reads all of /proc.
	Holders bool
}

// Mount mounts with m, by MountContext.
//
//   - m must be a [ContextMounter], as the results of host.New, fakemount.New and
//     host.Wrap are. For any other mounter the error matches [ErrUnwrapped], and nothing
//     was begun.
//   - Options that are known to carry a password or a key, such as password= of CIFS,
//     count as sensitive.
//
// It is safe for concurrent use if m is.
func Mount(ctx context.Context, m Interface, request Request) error {
	request = request.apart()
	cm, ok := m.(ContextMounter)
	if !ok {
		return request.NotBegun(unwrapped(m))
	}
	return tracing.Step(ctx, "mount", func(ctx context.Context) error { return cm.MountContext(ctx, request) })
}

func unwrapped(m Interface) error {
	return failure.Of(ErrUnwrapped, fmt.Errorf("%T has no MountContext and no UnmountContext; host.Wrap gives it those", m))
}

// apart returns the request with the options among Options that carry a secret moved
// to Sensitive, which it applies after the others.
func (r Request) apart() Request {
	if !slices.ContainsFunc(r.Options, secretopt.IsSecret) {
		return r
	}
	r.Sensitive = slices.Concat(slices.DeleteFunc(slices.Clone(r.Options), func(o string) bool { return !secretopt.IsSecret(o) }), r.Sensitive)
	r.Options = slices.DeleteFunc(slices.Clone(r.Options), secretopt.IsSecret)
	return r
}

// Unmount unmounts the topmost mount at target with m, by UnmountContext. m must be a
// [ContextMounter], as for [Mount].
func Unmount(ctx context.Context, m Interface, target string, options UnmountOptions) (rung Rung, err error) {
	cm, ok := m.(ContextMounter)
	if !ok {
		return RungNone, UnmountFailed(target, unwrapped(m))
	}
	err = tracing.Step(ctx, "unmount", func(ctx context.Context) (err error) {
		rung, err = cm.UnmountContext(ctx, target, options)
		return err
	})
	return rung, err
}

// Check refuses a request of which no mount can be made: no absolute mount point, a NUL
// byte, or words that mount(8) would take for something else. Mounters call it first.
func (r Request) Check() error {
	switch {
	case r.Target == "":
		return failure.Of(ErrNoTarget, errors.New("no mount point was given"))
	case !filepath.IsAbs(r.Target):
		return failure.Of(ErrNoTarget, fmt.Errorf("the mount point %q is not an absolute path", r.Target))
	case strings.ContainsRune(r.Target, 0), strings.ContainsRune(r.Source, 0), strings.ContainsRune(r.FSType, 0):
		return failure.Of(ErrBadOption, errors.New("a NUL byte in source, mount point or type"))
	case strings.HasPrefix(r.FSType, "-"):
		return failure.Of(ErrBadOption, fmt.Errorf("%q is no file system type", r.FSType))
	}
	isPath := filepath.IsAbs(r.Source) && mountopt.Parse(r.Options...).Bind // whatever its name is
	if r.Source != "" && !isPath {
		if err := CheckSource(r.Source); err != nil {
			return failure.Of(ErrBadOption, err)
		}
	}
	return nil
}

// Rung is a step of the unmount ladder.
type Rung int

// The rungs, from harmless to last resort.
const (
	// RungNone: nothing was tried.
	RungNone Rung = iota
	// RungNormal: umount2(2) without MNT_FORCE or MNT_DETACH.
	RungNormal
	// RungForce: MNT_FORCE was used. It hits all mounts of the file system. On
	// NFS unwritten data may be lost ([Rung.Loss], [UnmountOptions]).
	RungForce
	// RungLazy: the mount is out of sight, but its file system may still be in
	// use. Treat the volume as uncertain.
	RungLazy
)

func (r Rung) String() string {
	switch r {
	case RungNone:
		return "none"
	case RungNormal:
		return "normal"
	case RungForce:
		return "force"
	case RungLazy:
		return "lazy"
	}
	return fmt.Sprintf("Rung(%d)", int(r))
}

// Loss says in a sentence what may be lost, or left behind, by an unmount of
// a file system of this type that took this rung; it is empty where nothing is.
// An empty type stands for any. Force hits all mounts of the file system; of other
// mount namespaces' nothing is known.
func (r Rung) Loss(fstype string) string {
	switch r {
	case RungForce:
		return lossByForce(fstype)
	case RungLazy:
		return "The file system lives on out of sight until its last user is gone; what was not yet written is written then, or lost if its server or daemon stays away."
	}
	return ""
}

func lossByForce(fstype string) string {
	switch fstypes.Family(fstype) {
	case "fuse", "glusterfs":
		return "The daemon was cut off from all mounts of the file system: requests that it had not answered have failed, and what it had not stored yet may be lost."
	case "nfs", "cifs", "ceph", "9p", "lustre":
		return "Requests under way of all mounts of the file system have failed, and data that was written but had not reached the server may be lost."
	case "":
		return "Requests under way of all mounts of the file system may have failed, and data that had not reached the server or daemon may be lost."
	}
	return "" // the kernel does the same as without force
}

// Propagation says how later mounts cross between the host and a container
// (mount_namespaces(7)). Its values are the words of mount(8) and of the OCI
// runtime specification.
type Propagation string

// The propagations, with a pod's word for each.
const (
	PropagationPrivate Propagation = "rprivate" // None: in neither direction
	PropagationSlave   Propagation = "rslave"   // HostToContainer
	PropagationShared  Propagation = "rshared"  // Bidirectional
)

// IDMapping maps Size ids, from ContainerID on, to the ids from HostID on, as a
// line of /proc/<pid>/uid_map does (user_namespaces(7)). For an idmapped mount
// ContainerID is the owner in the file system, and HostID the shown owner. With
// the mappings of a pod's user namespace, the pod sees the owners of the file
// system.
type IDMapping struct {
	ContainerID, HostID, Size uint32
}
