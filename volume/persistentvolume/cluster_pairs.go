package persistentvolume

import (
	"context"
	"sync"

	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/internal/work"
)

// pairs has one lock for each volume, by its name. It is held while a claim binds the
// volume, or while the volume is synced. The latter does not wait for the former, which
// may take some calls to the API, but comes again after it.
type pairs struct {
	locks keylock.Map[string]
	queue *work.Queue[volume.ObjectRef]

	mu     sync.Mutex
	missed map[string]bool // and whether it is to be looked at
}

// lock waits for the lock of a volume, no longer than ctx.
func (p *pairs) lock(ctx context.Context, volumeName string) (unlock func(), err error) {
	free, err := p.locks.Lock(ctx, volumeName)
	if err != nil {
		return nil, err
	}
	return p.release(volumeName, free), nil
}

// try takes the lock of a volume if it is free; else the volume is queued again
// when it is.
func (p *pairs) try(volumeName string, look bool) (unlock func(), ok bool) {
	free, ok := p.locks.TryLock(volumeName)
	if !ok {
		p.miss(volumeName, look)
		if free, ok = p.locks.TryLock(volumeName); !ok { // nor was it released before that was noted
			return nil, false
		}
	}
	return p.release(volumeName, free), true
}

func (p *pairs) release(volumeName string, free func()) (unlock func()) {
	return func() {
		free()
		p.again(volumeName)
	}
}

func (p *pairs) miss(volumeName string, look bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.missed == nil {
		p.missed = make(map[string]bool)
	}
	p.missed[volumeName] = p.missed[volumeName] || look
}

// again enqueues a volume that could not be locked.
func (p *pairs) again(volumeName string) {
	p.mu.Lock()
	look, missed := p.missed[volumeName]
	delete(p.missed, volumeName)
	p.mu.Unlock()
	switch ref := pvapi.VolumeRef(volumeName); {
	case look:
		p.queue.Add(ref)
	case missed:
		p.queue.Hear(ref)
	}
}
