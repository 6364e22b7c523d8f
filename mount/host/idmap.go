package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/fstypes"
	"github.com/podvol/podvol/mount/internal/ladder"
	"github.com/podvol/podvol/mount/internal/mountopt"
	"github.com/podvol/podvol/mount/internal/mounttable"
)

// IDMapping is [mount.IDMapping].
type IDMapping = mount.IDMapping

// IDMap maps the owners of a mount's files to the shown owners. An owner without
// a mapping is shown as the overflow id (65534). No file can be made for an id
// that is the target of no mapping (EOVERFLOW).
type IDMap struct {
	UIDs, GIDs []IDMapping
}

// Namespace returns a descriptor of a new user namespace with these mappings, as
// mount_setattr(2) takes it. It lives as long as the descriptor, or a mount
// made from it. The namespace comes from a child that is stopped before its
// first instruction and killed: the caller needs CAP_SETUID and CAP_SETGID, and
// a kernel that lets it trace its own children.
func (m IDMap) Namespace(ctx context.Context) (*os.File, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if len(m.UIDs) == 0 || len(m.GIDs) == 0 {
		return nil, errors.New("no users or no groups are mapped")
	}
	// It denies setgroups(2): no program runs in it, and a caller whose own
	// namespace denies that may not allow it here.
	//
	// The child is traced by, and dies with, the thread that made it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	child, err := os.StartProcess("/proc/self/exe", []string{"podvol-idmap"}, &os.ProcAttr{Sys: &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER,
		UidMappings: sysMappings(m.UIDs),
		GidMappings: sysMappings(m.GIDs),
		Pdeathsig:   syscall.SIGKILL,
		Ptrace:      true, // it stops in execve(2)
	}})
	if err != nil {
		return nil, fmt.Errorf("make a user namespace with the mappings: %w", err)
	}
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", child.Pid))
	_ = child.Kill()
	_, waitErr := child.Wait()
	if err == nil && waitErr != nil {
		space.Close()
	}
	if err := errors.Join(err, waitErr); err != nil {
		return nil, err
	}
	return space, nil
}

func sysMappings(mappings []IDMapping) []syscall.SysProcIDMap {
	var all []syscall.SysProcIDMap
	for _, m := range mappings {
		all = append(all, syscall.SysProcIDMap{ContainerID: int(m.ContainerID), HostID: int(m.HostID), Size: int(m.Size)})
	}
	return all
}

// IDMapError says why the files of a mount cannot be shown with other owners.
type IDMapError struct {
	// Source is the source of the mount. FSType is its file system's type; empty:
	// not known. Mount is that file system's mount point.
	Source, FSType, Mount string
	// Since is the first version of Linux that supports this type: "6.3"; empty:
	// none is known.
	Since string
	// Reason says why.
	Reason string
	// Err is the underlying error.
	Err error
}

func (e *IDMapError) Error() string {
	what := e.Source
	if e.FSType != "" {
		what += " (" + e.FSType + ")"
	}
	return fmt.Sprintf("%s cannot be shown with other owners: %s: %v", what, e.Reason, e.Err)
}

// Unwrap returns the underlying error.
func (e *IDMapError) Unwrap() error { return e.Err }

// idMapSince is the version of Linux since which a file system's mounts can be
// idmapped: mount_setattr(2), and for those later than the page the FS_ALLOW_IDMAP
// of the kernel's sources.
func idMapSince(fstype string) string {
	switch fstype {
	case "ext2", "ext3", "ext4", "xfs", "vfat", "msdos":
		return "5.12"
	case "btrfs", "ntfs3":
		return "5.15"
	case "f2fs":
		return "5.18"
	case "erofs", "overlay":
		return "5.19"
	case "squashfs":
		return "6.2"
	case "tmpfs":
		return "6.3"
	case "ceph":
		return "6.7"
	case "hugetlbfs":
		return "6.9"
	}
	return ""
}

// NewIDMapError explains err, an error of the kernel when the mount of source was
// to be idmapped (open_tree(2), mount_setattr(2)), or when a user namespace was
// to be made for it. It reads the mount table and never the content of source.
func NewIDMapError(source string, err error) *IDMapError {
	e := &IDMapError{Source: source, Err: err}
	found, lookErr := entryHolding(source)
	if lookErr == nil {
		e.FSType, e.Mount, e.Since = found.FSType, found.Target, idMapSince(found.FSType)
	}
	e.Reason = e.reason(slices.Contains(found.Options, "idmapped"))
	return e
}

// noNamespaceError is for mappings of which no user namespace can be made.
func noNamespaceError(source string, err error) *IDMapError {
	return &IDMapError{Source: source, Reason: "no user namespace with these ids is to be had, which takes CAP_SETUID and CAP_SETGID, and ids that are mapped here", Err: err}
}

// entryHolding finds the mount that a path lies in.
func entryHolding(path string) (mount.Entry, error) {
	fd, err := openPath(unix.AT_FDCWD, path, 0)
	if err != nil {
		return mount.Entry{}, err
	}
	defer unix.Close(fd)
	at, err := look(fd, "")
	if err != nil {
		return mount.Entry{}, err
	}
	return mounttable.MountWithID(mounttable.Uncached{}, at.mount)
}

func (e *IDMapError) reason(already bool) string {
	refused := errors.Is(e.Err, unix.EINVAL)
	switch {
	case already:
		return "its mount is idmapped already, and that cannot be done twice"
	case errors.Is(e.Err, unix.ENOSYS):
		return "the kernel has no idmapped mounts; they need Linux " + orElse(e.Since, "5.12") + ", and no filter of system calls that denies mount_setattr"
	case errors.Is(e.Err, unix.EPERM):
		return e.denied()
	case refused && fstypes.Family(e.FSType) == "fuse":
		return "a FUSE server must offer it (FUSE_ALLOW_IDMAP, with default_permissions, Linux 6.12), and this one does not"
	case refused && e.FSType == "overlay":
		return "overlay needs Linux 5.19 and layers that can be idmapped themselves"
	case refused && e.Since != "":
		return "its file system needs Linux " + e.Since + " for it, as do all mounted below it for their own versions"
	case refused && e.FSType != "":
		return "its file system cannot in any version of Linux that is known here"
	}
	return "the kernel does not make it"
}

func (e *IDMapError) denied() string {
	if p, err := ownPrivileges(); err == nil && p.inUserNamespace {
		return "in a user namespace only file systems that were mounted there can be idmapped"
	}
	return "it needs CAP_SYS_ADMIN, and CAP_SETUID and CAP_SETGID for the mapping"
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// BindIDMapped makes a bind mount that shows its files with other owners.
//
//   - New files in it get the owner on disk that is mapped to their shown owner.
//   - It changes neither the file system nor any other mount of it
//     (mount_setattr(2), MOUNT_ATTR_IDMAP).
//   - The request is one for [Mounter.MountContext] whose options ask for a
//     bind mount. With rbind the mounts below are mapped as well, all or none.
//     ctx, the target and errors are as there.
//   - If the mount cannot be made, the error is an *[mount.Error] with the cause
//     [mount.ErrNoIDMap] and an *[IDMapError] with the reason. It is never replaced by
//     a change of the files' owners.
func (m *Mounter) BindIDMapped(ctx context.Context, r mount.Request, ids IDMap) error {
	if err := r.Check(); err != nil {
		return r.NotBegun(err)
	}
	o := mountopt.Parse(slices.Concat(r.Options, r.Sensitive)...)
	if !o.Bind || o.Remount || len(o.Command) > 0 {
		return r.NotBegun(failure.Of(mount.ErrBadOption, errors.New("an idmapped mount is a new bind mount: the options must say bind or rbind, and nothing that only mount(8) does")))
	}
	space, err := ids.Namespace(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return r.NotBegun(ladder.Ended(ctx))
		}
		return r.NotBegun(failure.Of(mount.ErrNoIDMap, noNamespaceError(r.Source, err)))
	}
	return m.config.withFacts(m.mountNative(ctx, r, o, space))
}

// ProbeIDMap returns nil if [Mounter.BindIDMapped] is expected to work for
// the file system at path. Otherwise it returns the *[IDMapError] of that call.
// It tries on a copy of the mount that no other process sees.
func (m *Mounter) ProbeIDMap(ctx context.Context, path string) error {
	ids := []IDMapping{{HostID: 0, Size: 1}}
	space, err := IDMap{UIDs: ids, GIDs: ids}.Namespace(ctx)
	if err != nil {
		return noNamespaceError(path, err)
	}
	return m.doOwning(ctx, callKey{target: "probe " + path}, space, func() error {
		tree, err := m.api.OpenTree(unix.AT_FDCWD, path, false)
		if err != nil {
			return NewIDMapError(path, err)
		}
		defer unix.Close(tree)
		if err := m.api.MountSetattr(tree, false, idMapped(space)); err != nil {
			return NewIDMapError(path, err)
		}
		return nil
	})
}

func idMapped(space *os.File) unix.MountAttr {
	return unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(space.Fd())}
}

// bindIDMapped is bind for a mount with another view of its owners. Nothing
// stands in for a call that this kernel lacks.
func (n *native) bindIDMapped(ctx context.Context) error {
	if err := n.checkBindOptions(); err != nil {
		return err
	}
	err := n.bindOutOfSight(ctx)
	if _, ok := errors.AsType[*lackingError](err); ok {
		return failure.Of(mount.ErrNoIDMap, NewIDMapError(n.request.Source, err))
	}
	return err
}

// mapIDs changes the owners that a copy shows which no process sees yet.
func (n *native) mapIDs(tree int) error {
	if n.idMap == nil {
		return nil
	}
	if err := n.api.MountSetattr(tree, n.options.Recursive, idMapped(n.idMap)); err != nil {
		return failure.Of(mount.ErrNoIDMap, NewIDMapError(n.request.Source, err))
	}
	return nil
}
