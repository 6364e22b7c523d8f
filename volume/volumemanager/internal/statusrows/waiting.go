package statusrows

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podspec"
	"github.com/podvol/podvol/volume/volumemanager/volumestatus"
)

// Untouched are the volumes of a pod with which nothing was done yet. The pod may be nil.
func Untouched(pod *v1.Pod) *volumestatus.PodVolumes {
	if pod == nil {
		return &volumestatus.PodVolumes{}
	}
	result := &volumestatus.PodVolumes{Pod: podspec.Name(pod), PodUID: pod.UID, Volumes: make([]volumestatus.Status, len(pod.Spec.Volumes))}
	now := time.Now()
	for i, v := range pod.Spec.Volumes {
		result.Volumes[i] = volumestatus.Status{Pod: result.Pod, PodUID: pod.UID, Volume: v.Name, State: volumestatus.StatePending, Since: now}
	}
	return result
}

// Refused are the volumes of a pod that have all the same error. The pod may be nil.
func Refused(pod *v1.Pod, err error) *volumestatus.PodVolumes {
	result := Untouched(pod)
	for i := range result.Volumes {
		result.Volumes[i].State, result.Volumes[i].Err = volumestatus.StateFailed, err
	}
	return result
}

// AreMounted reports whether every volume is that a container uses.
func AreMounted(rows []volumestatus.Status) bool {
	return !slices.ContainsFunc(rows, func(r volumestatus.Status) bool {
		return r.State != volumestatus.StateMounted && r.State != volumestatus.StateUnused || r.Err != nil
	})
}

// What is done with all volumes of a pod, for [ErrorOf].
const (
	SetUp    = "set up"
	TearDown = "tear down"
)

// ErrorOf collects the errors of the volumes; ended is why a wait ended early, if
// no volume says it.
func ErrorOf(p *volumestatus.PodVolumes, op string, ended error) error {
	var errs []error
	for _, v := range p.Volumes {
		if v.Err != nil {
			errs = append(errs, v.Err)
		}
	}
	if len(errs) == 0 {
		return ended
	}
	return &volumestatus.PodError{Op: op, Pod: p.Pod, PodUID: p.PodUID, Errs: errs}
}

// Pending turns the row of a volume that a caller stopped waiting for into one
// that says so; otherwise is what it waits for if the row does not say it.
func Pending(row volumestatus.Status, cause error, otherwise string) volumestatus.Status {
	e := &volumestatus.PendingError{Pod: row.Pod, Volume: row.Volume, Last: row.Err, Cause: cause}
	e.Waits, e.Attachment = waitsFor(row, otherwise)
	row.State, row.Err = volumestatus.StatePending, e
	return row
}

// NotMounted says what a volume waits for, of which these are the rows.
func NotMounted(rows []volumestatus.Status, name string) *volumestatus.NotMountedError {
	row := rows[max(0, slices.IndexFunc(rows, func(r volumestatus.Status) bool { return r.Volume == name }))]
	e := &volumestatus.NotMountedError{Last: row.Err}
	e.Waits, e.Attachment = waitsFor(row, "its set-up to begin")
	if own, ok := e.Last.(*volume.Error); ok {
		e.Last = own.Err // the error around this one names the volume
	}
	return e
}

// waitsFor says what the volume waits for, and the report about its attachment
// if it is that.
func waitsFor(s volumestatus.Status, otherwise string) (string, *volumestatus.AttachmentError) {
	switch {
	case s.Operation != "":
		return fmt.Sprintf("its %s of %s, under way for %s", s.Operation, s.Source, time.Since(s.Began).Round(time.Millisecond)), nil
	case s.Attachment != nil && !s.Attachment.Mounted:
		return s.WaitsFor(), s.Attachment
	case !s.NextRetry.IsZero():
		return fmt.Sprintf("the next attempt in %s", time.Until(s.NextRetry).Round(time.Millisecond)), nil
	}
	if s.Wanted {
		otherwise = cmp.Or(s.WaitsFor(), otherwise)
	}
	return otherwise, nil
}
