package format

import (
	"sync"
	"time"
)

// slotRelease returns the function that gives a slot back. It is given back
// earlier if its time is over.
func (f *Formatter) slotRelease() func() {
	release := sync.OnceFunc(func() { <-f.slots })
	if f.config.SlotTimeout <= 0 {
		return release
	}
	timer := time.AfterFunc(f.config.SlotTimeout, release)
	return func() {
		timer.Stop()
		release()
	}
}
