package volume_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumesource"
)

// later is an error that says when to try again.
type later time.Time

func (e later) Error() string      { return "not now" }
func (e later) RetryAt() time.Time { return time.Time(e) }

func TestRetryAt(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	err := fmt.Errorf("volume: %w", errors.Join(errors.New("first"), volume.NothingDone(later(at))))
	if got, ok := volume.RetryAt(err); !ok || !got.Equal(at) {
		t.Errorf("RetryAt = %v, %v", got, ok)
	}
	for _, err := range []error{nil, errors.New("no time")} {
		if got, ok := volume.RetryAt(err); ok || !got.IsZero() {
			t.Errorf("RetryAt(%v) = %v, %v", err, got, ok)
		}
	}
}

func TestHealthOfAPluginWithoutABook(t *testing.T) {
	if h, ok := volumesource.HealthOf(&basic{}, nfsSpec()); ok || h != (volumesource.Health{}) {
		t.Errorf("%+v, %v", h, ok)
	}
}
