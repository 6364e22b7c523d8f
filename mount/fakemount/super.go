package fakemount

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/table"
)

// startsEmpty reports whether each mount of the type makes a new, empty file
// system, whatever its source.
func startsEmpty(fstype string) bool {
	switch fstype {
	case "tmpfs", "ramfs", "hugetlbfs", "proc", "sysfs", "devtmpfs", "devpts", "mqueue", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs", "bpf", "overlay":
		return true
	}
	return false
}

// alwaysReadOnly reports whether file systems of the type cannot be written to,
// whatever the options say.
func alwaysReadOnly(fstype string) bool {
	switch fstype {
	case "squashfs", "erofs", "iso9660", "cramfs", "romfs":
		return true
	}
	return false
}

// isBlock reports whether source is a block device.
func isBlock(source string) bool {
	return strings.HasPrefix(source, "/") && !strings.HasPrefix(source, "//")
}

// super returns the file system that a mount of the request's source shows: the
// one that is mounted already, if the kernel would share it, or a new one, which
// is not entered anywhere yet.
func (ns *namespace) super(r mount.Request, fstype string, options fakeOptions) (*fakeSuper, error) {
	source, served := r.Source, ns.types[fstype]
	s := &fakeSuper{source: source, fstype: fstype, options: options.shown, flags: options.ApplyToSuper(0)}
	switch {
	case startsEmpty(fstype):
		s.source = cmp.Or(source, fstype)
		s.device = ns.anonymousDevice()
		if served != nil {
			return s, ns.fill(s, served, r)
		}
		s.fresh = true
		return s, s.initEmpty(options)
	case source == "":
		return nil, failure.Of(mount.ErrNoSource, unix.EINVAL)
	case isBlock(source):
		s.block = true
		s.key = fakeSuperKey{source: source}
	default:
		s.key = networkKey(s, options)
	}
	if old := ns.supers[s.key]; old != nil {
		return old, canShare(old, s)
	}
	s.device = ns.deviceOf(s)
	if alwaysReadOnly(fstype) {
		s.flags |= unix.MS_RDONLY
	}
	if served != nil {
		return s, ns.fill(s, served, r)
	}
	dir, err := ns.contentOf(source)
	ns.rename(&s.dir, dir)
	return s, err
}

// fakeRoot is the owner and mode of the root directory of a file system that
// starts empty; an owner of -1 is the user that mounts.
type fakeRoot struct {
	uid, gid int
	mode     uint32
}

func (s *fakeSuper) initEmpty(options fakeOptions) error {
	var err error
	if s.rootOptions, err = parseRoot(s.fstype, options.Data); err != nil {
		return err
	}
	if s.fstype != "tmpfs" {
		return nil
	}
	if _, err := tmpfsOptions(options.Data); err != nil {
		return err
	}
	shown, err := tmpfsOptions(s.options)
	s.options = setOptions(nil, shown)
	return err
}

// parseRoot reads mode, uid and gid. Tmpfs is open to all by default.
func parseRoot(fstype string, options []string) (fakeRoot, error) {
	root := fakeRoot{uid: -1, gid: -1, mode: 0o755}
	if fstype == "tmpfs" {
		root.mode = 0o1777
	}
	if value, ok := valueOf(options, "mode"); ok {
		mode, err := parseMode(value)
		if err != nil {
			return fakeRoot{}, err
		}
		root.mode = mode
	}
	for name, id := range map[string]*int{"uid": &root.uid, "gid": &root.gid} {
		value, ok := valueOf(options, name)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(value, 10, 31)
		if err != nil {
			return fakeRoot{}, badOption("an owner that is no number")
		}
		*id = int(n)
	}
	return root, nil
}

// networkKey: NFS and its like share a file system only between mounts whose
// options agree.
func networkKey(s *fakeSuper, options fakeOptions) fakeSuperKey {
	data := slices.Sorted(slices.Values(options.Data))
	return fakeSuperKey{s.source, s.fstype, fmt.Sprint(s.flags, data)}
}

// canShare refuses a second mount of a device that differs from the first.
func canShare(mounted, wanted *fakeSuper) error {
	if mounted.fstype != wanted.fstype || (mounted.flags^wanted.flags)&unix.MS_RDONLY != 0 {
		state := superFlagNames(mounted.flags)[0]
		return &fakeError{mounted.source + " is mounted already, as " + mounted.fstype + " " + state, unix.EBUSY}
	}
	return nil
}

// deviceOf returns the device number: a block device has its own for good,
// anything else the next one.
func (ns *namespace) deviceOf(s *fakeSuper) uint64 {
	if !s.block {
		return ns.anonymousDevice()
	}
	const major = 259 // block devices with dynamic numbers
	if _, ok := ns.devices[s.source]; !ok {
		ns.devices[s.source] = unix.Mkdev(major, uint32(len(ns.devices)))
	}
	return ns.devices[s.source]
}

func (ns *namespace) anonymousDevice() uint64 {
	ns.lastAnon++
	return unix.Mkdev(0, ns.lastAnon)
}

// Use uses the mount at target, as a process with an open file there does. Until
// done is called, a normal unmount fails with EBUSY, and after a lazy one the
// file system lives on, as [table.SuperblockOf] shows. The error is EINVAL if nothing
// is mounted, or says why target cannot be found. done may be called again.
func (f *Mounter) Use(target string) (done func(), err error) {
	f.ns.mu.Lock()
	defer f.ns.mu.Unlock()
	at, err := f.ns.walk(target, false)
	if err != nil {
		return nil, err
	}
	if !at.isMountRoot() {
		return nil, unix.EINVAL
	}
	m := at.mount
	m.users++
	m.super.users++
	return sync.OnceFunc(func() {
		f.ns.mu.Lock()
		defer f.ns.mu.Unlock()
		m.users--
		m.super.users--
	}), nil
}

// SuperblockOf implements superblocker.
func (f *Mounter) SuperblockOf(e mount.Entry) table.Superblock {
	f.ns.mu.Lock()
	defer f.ns.mu.Unlock()
	at, err := f.ns.walk(e.Target, false)
	if err != nil || at.mount.super.device != e.Device {
		return table.Superblock{}
	}
	f.ns.asked[e.Device] = at.mount.super
	return f.ns.superblockOf(e.Device)
}

// SuperblockByKey implements superblocker.
func (f *Mounter) SuperblockByKey(key string) table.Superblock {
	var device uint64
	if n, err := fmt.Sscanf(key, fakeKey, &device); n != 1 || err != nil {
		return table.NewSuperblock(func() string { return key }, nil)
	}
	return f.ns.superblockOf(device)
}

// fakeKey is the form of the keys of the fake's file systems.
const fakeKey = "fake %d"

// superblockOf is a file system that was asked for before; the fake gives no
// device number twice.
func (ns *namespace) superblockOf(device uint64) table.Superblock {
	return table.NewSuperblock(func() string { return fmt.Sprintf(fakeKey, device) }, func() (alive, known bool) {
		ns.mu.Lock()
		defer ns.mu.Unlock()
		s := ns.asked[device]
		return s != nil && (s.mounts > 0 || s.users > 0), true
	})
}
