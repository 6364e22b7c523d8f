// Package podevents tells pods of their volumes by events, in the kubelet's words.
package podevents

import (
	"cmp"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podspec"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/podcheck"
)

// Teller sends the events. Without a Sink its methods do nothing. They may be called from
// several goroutines.
type Teller struct {
	Sink    volume.EventSink
	Plugins *volume.VolumePluginMgr
}

// FirstSetUp is called when a recorded volume was set up for the first time. It tells the
// pod of its wishes that the volume does not fulfil. The argument keepsGroups says that the
// files are not given to the pod's fsGroup, which a pod expects below its own directory:
// clients of a file server do not change its groups (kubernetes issue 90123).
func (t Teller) FirstSetUp(pod *v1.Pod, record *mountrecord.Record, keepsGroups bool) {
	if t.Sink == nil {
		return
	}
	if group := podspec.MounterArgs(pod).FsGroup; group != nil && keepsGroups {
		for _, name := range record.Volumes {
			t.Sink.Event(pod, v1.EventTypeNormal, "FSGroupNotApplied", fmt.Sprintf(
				"fsGroup %d is not applied to volume %q (%s): its files keep their groups. Let the pod have one of those in securityContext.supplementalGroups.",
				*group, name, record.Plugin))
		}
	}
	plugin, err := t.Plugins.FindPluginByName(record.Plugin)
	if err != nil {
		return // it has just set the volume up
	}
	for _, s := range podcheck.Shortfalls(plugin, record.Spec(), pod) {
		t.Sink.Event(pod, v1.EventTypeNormal, s.Reason, s.Message)
	}
}

// Failed tells the pod that a set-up has failed, of a block volume or of a file system. It
// names the volume as its directory does, or as the pod does while its claim is not
// resolved.
func (t Teller) Failed(pod *v1.Pod, record *mountrecord.Record, block bool, err error) {
	if t.Sink == nil {
		return
	}
	reason, step := failedStep(err, block)
	for _, name := range record.Volumes {
		err := (&volume.Error{Op: "SetUp", Plugin: record.Plugin, Volume: name, Pod: record.Pod, PodUID: record.PodUID}).About(err)
		t.Sink.Event(pod, v1.EventTypeWarning, reason,
			fmt.Sprintf("%s failed for volume %q : %v", step, cmp.Or(record.Spec().Name(), name), err))
	}
}

// Grown tells the pod that its volume has grown on this node.
func (t Teller) Grown(pod *v1.Pod, record *mountrecord.Record, size resource.Quantity) {
	if t.Sink != nil {
		t.Sink.Event(pod, v1.EventTypeNormal, "FileSystemResizeSuccessful",
			fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q: it has %s", record.Spec().Name(), size.String()))
	}
}

// NotGrown tells the pod that its volume stays as it is.
func (t Teller) NotGrown(pod *v1.Pod, record *mountrecord.Record, size resource.Quantity, err error) {
	if t.Sink != nil {
		t.Sink.Event(pod, v1.EventTypeWarning, "VolumeResizeFailed",
			fmt.Sprintf("NodeExpandVolume failed for volume %q: it does not grow to %s: %v", record.Spec().Name(), size.String(), err))
	}
}

// failedStep are the kubelet's words for the part of a set-up that has failed.
func failedStep(err error, block bool) (reason, step string) {
	op := "SetUp"
	if own, ok := errors.AsType[*volume.Error](err); ok {
		op = own.Op
	}
	switch {
	case op == "NodeExpandVolume":
		return "VolumeResizeFailed", op
	case block && op == "SetUp":
		return "FailedMapVolume", "MapVolume"
	case block:
		return "FailedMapVolume", "MapVolume." + op
	case op == "MountDevice" || op == "WaitForAttach":
		return "FailedMount", "MountVolume." + op
	}
	return "FailedMount", "MountVolume.SetUp"
}
