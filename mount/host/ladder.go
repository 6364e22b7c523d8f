package host

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/fstypes"
	"github.com/podvol/podvol/mount/internal/ladder"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/util/eintr"
)

// Answers implements [ladder.unmounter]. At most one question for each target waits.
func (u *hostUnmount) Answers(ctx context.Context) bool {
	found := u.known(ctx)
	if found == nil {
		return true
	}
	return !ladder.IsSilence(u.m.calls.Do(ctx, callKey{found.Target, rungAsking}, func() error {
		return u.m.sys.ask(found.Target)
	}))
}

// rungAsking keeps questions apart from the calls of all rungs, and from rungHolders.
const rungAsking mount.Rung = -2

// ask asks the file system for its figures, which no cache answers. A link
// that has come to target is not followed.
func (hostCalls) ask(target string) error {
	fd, err := openPath(unix.AT_FDCWD, target, unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Statfs_t
	return eintr.Do(func() error { return unix.Fstatfs(fd, &st) })
}

// IsOver implements [ladder.unmounter] for NFS, whose file systems have a directory
// below /sys/class/bdi as long as they live.
func (u *hostUnmount) IsOver() bool {
	found := u.found.Load()
	if found == nil || fstypes.Family(found.FSType) != "nfs" {
		return false
	}
	now, ok, err := mounttable.SightingAt(u.m.table, found.Target)
	if err != nil || ok && now.IsSame(*found) {
		return false
	}
	return mounttable.HasLeftSysfs(found.Device)
}

// Enter implements [ladder.unmounter].
func (u *hostUnmount) Enter(h ladder.Headway) (leave func()) {
	found := u.found.Load()
	if found == nil {
		return func() {}
	}
	name := ladder.NameOf(found.Entry)
	u.m.force.Add(name, h, 1)
	return func() { u.m.force.Add(name, h, -1) }
}

// IsShared implements [ladder.unmounter], by this mount namespace. The table has a
// mount that hangs in its end no more.
func (u *hostUnmount) IsShared(h ladder.Headway) bool {
	found := u.found.Load()
	if found == nil {
		return true
	}
	mounts, err := u.m.table.ByDevice(found.Device)
	if err != nil {
		return true
	}
	for _, e := range mounts {
		if name := ladder.NameOf(e); name != ladder.NameOf(found.Entry) && !u.m.force.Reached(name, h) {
			return true
		}
	}
	return false
}

// turnLimit is how long a call keeps others from its target. One that takes
// longer has taken its mount out of the table and hangs after that, or hangs in
// looking the target up, as others would.
const turnLimit = time.Second

// turns has the calls of several rungs for one target look at the table and act
// on what they saw one after the other: of stacked mounts, a second call in
// between would take the one beneath.
type turns struct {
	mu   sync.Mutex
	last map[string]*turn // by target
}

type turn struct {
	began time.Time
	ended chan struct{}
}

// take waits for the turn at target, for turnLimit after the one before began
// at most.
func (t *turns) take(target string) (end func()) {
	for {
		mine, before := t.try(target)
		if before == nil {
			return func() { t.end(target, mine) }
		}
		limit := time.NewTimer(time.Until(before.began.Add(turnLimit)))
		select {
		case <-before.ended:
		case <-limit.C:
		}
		limit.Stop()
	}
}

// try takes the turn, or returns whose it is.
func (t *turns) try(target string) (mine, before *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if before := t.last[target]; before != nil && time.Since(before.began) < turnLimit {
		return nil, before
	}
	if t.last == nil {
		t.last = map[string]*turn{}
	}
	mine = &turn{began: time.Now(), ended: make(chan struct{})}
	t.last[target] = mine
	return mine, nil
}

func (t *turns) end(target string, mine *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(mine.ended)
	if t.last[target] == mine {
		delete(t.last, target)
	}
}
