package noleak

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func stays(end <-chan struct{}) { <-end }

// A goroutine that ends later than goleak waits is no leak; one that stays is shown.
func TestWhoEndsLateIsNoLeak(t *testing.T) {
	before, end := goleak.IgnoreCurrent(), make(chan struct{})
	go stays(end)
	if err := find(0, before); err == nil || !strings.Contains(err.Error(), "noleak.stays") {
		t.Errorf("while it stays: %v", err)
	}
	time.AfterFunc(time.Second, func() { close(end) })
	if err := Find(before); err != nil {
		t.Error(err)
	}
}
