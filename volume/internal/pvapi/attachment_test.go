package pvapi_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
)

// The operation and the volume are named once, by the reader.
func TestAttachmentErrorIsTheReason(t *testing.T) {
	why := errors.New("no slot is free")
	failed := &volume.Error{Op: "Attach", Volume: "v", Err: why}
	for err, want := range map[error]string{
		why:                            "no slot is free",
		failed:                         "no slot is free",
		volume.NothingDone(failed):     "no slot is free",
		fmt.Errorf("late: %w", failed): `late: Attach of volume "v" failed: no slot is free`,
	} {
		told := pvapi.AttachmentError(err, time.Unix(1, 0))
		if told.Message != want || told.ErrorCode != nil || told.Time.Unix() != 1 {
			t.Errorf("%v: %+v", err, told)
		}
	}
	full := &volume.Error{Op: "Attach", Err: fmt.Errorf("%w: 8 of 8", volume.ErrAttachLimitExceeded)}
	if told := pvapi.AttachmentError(full, time.Now()); told.ErrorCode == nil || *told.ErrorCode != 8 {
		t.Errorf("%+v", told)
	}
}
