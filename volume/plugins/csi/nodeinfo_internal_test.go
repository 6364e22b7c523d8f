package csi

import (
	"github.com/podvol/podvol/volume/plugins/csi/internal/drivers"
	"testing"
	"testing/synctest"
	"time"
)

// A driver's limit is due after the period of its object, which is news when it changes and
// never shorter than the API allows.
func TestPeriodOfALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told told
		d := &drivers.Driver{Name: "d"}
		if _, ok := told.due(d); ok {
			t.Error("nothing was told yet")
		}
		told.note(d, time.Now())
		if rest, ok := told.due(d); rest != 0 || !ok {
			t.Errorf("without a period it is due in %v, %v", rest, ok)
		}
		if !told.setPeriod("d", new(int64(1))) || told.setPeriod("d", new(int64(1))) || told.setPeriod("other", nil) {
			t.Error("what is news is not told")
		}
		time.Sleep(minRefresh - time.Second)
		if rest, ok := told.due(d); rest != time.Second || !ok {
			t.Errorf("due in %v, %v", rest, ok)
		}
		time.Sleep(time.Second)
		if _, ok := told.due(d); ok {
			t.Error("it is due")
		}
		if _, ok := told.due(&drivers.Driver{Name: "d"}); ok {
			t.Error("another registration was told of")
		}
	})
}
