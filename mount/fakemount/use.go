package fakemount

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
)

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
