package mount

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Use uses the mount at target, as a process with an open file there does. Until
// done is called, a normal unmount fails with EBUSY, and after a lazy one the
// file system lives on, as [SuperblockOf] shows. The error is EINVAL if nothing
// is mounted, or says why target cannot be found. done may be called again.
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
	f.asked[e.Device] = at.mount.super
	return f.superblockOf(e.Device)
}

// superblockByKey implements superblocker.
func (f *FakeMounter) superblockByKey(key string) Superblock {
	var device uint64
	if n, err := fmt.Sscanf(key, fakeKey, &device); n != 1 || err != nil {
		return Superblock{key: func() string { return key }}
	}
	return f.superblockOf(device)
}

// fakeKey is the form of the keys of the fake's file systems.
const fakeKey = "fake %d"

// superblockOf is a file system that was asked for before; the fake gives no
// device number twice.
func (f *FakeMounter) superblockOf(device uint64) Superblock {
	return Superblock{
		alive: func() (alive, known bool) {
			f.mu.Lock()
			defer f.mu.Unlock()
			s := f.asked[device]
			return s != nil && (s.mounts > 0 || s.users > 0), true
		},
		key: func() string { return fmt.Sprintf(fakeKey, device) },
	}
}
