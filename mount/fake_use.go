package mount

import (
	"sync"

	"golang.org/x/sys/unix"
)

// Use uses the mount at target, as a process does that has a file open there:
// until done is called, a normal unmount fails with EBUSY, and after a lazy one
// the file system lives on, as [SuperblockOf] tells. The error is EINVAL where
// nothing is mounted, or says why target cannot be found. done may be called
// again.
func (f *FakeMounter) Use(target string) (done func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.walk(target, false)
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
		f.mu.Lock()
		defer f.mu.Unlock()
		m.users--
		m.super.users--
	}), nil
}

// superblock implements superblocker.
func (f *FakeMounter) superblock(e Entry) Superblock {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.walk(e.Target, false)
	if err != nil || at.mount.super.device != e.Device {
		return Superblock{}
	}
	s := at.mount.super
	return Superblock{func() (alive, known bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return s.mounts > 0 || s.users > 0, true
	}}
}
