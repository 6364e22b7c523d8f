// Package clockjump makes times for tests of sleep, and of a wall clock that is set.
package clockjump

import (
	"time"
	"unsafe"
)

// Ahead returns t as it would be if the wall clock had been set ahead by d since t was taken,
// or if the machine had slept for d: by the wall clock it is earlier, by the monotonic clock it
// is the same. A time without a monotonic reading is earlier. Of d, whole seconds count.
func Ahead(t time.Time, d time.Duration) time.Time {
	if t == t.Round(0) {
		return t.Add(-d.Truncate(time.Second))
	}
	// A Time with a monotonic reading begins with a word that has the seconds of the wall
	// clock above 30 bits of nanoseconds. The test of this package proves it.
	*(*uint64)(unsafe.Pointer(&t)) -= uint64(d/time.Second) << 30
	return t
}
