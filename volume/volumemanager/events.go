package volumemanager

import (
	"cmp"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/podspec"
	"github.com/podvol/podvol/volume/podcheck"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// adviseGroups tells a pod with an fsGroup, when its volume is set up for the
// first time, that the volume's files do not belong to that: what a server
// exports is not given to groups by its clients (kubernetes issue 90123). For a
// volume outside the root, a hostPath, it is not expected.
func (o *operationExecutor) adviseGroups(u *setUp) {
	args := podspec.MounterArgs(u.pod)
	if o.events == nil || args.FsGroup == nil || u.mapping != nil || u.mounter.GetAttributes().Managed || !pathin.Strictly(rootdir.PodsDir(o.host.RootDir), u.record.Path) {
		return
	}
	for _, name := range u.record.Volumes {
		o.events.Event(u.pod, v1.EventTypeNormal, "FSGroupNotApplied", fmt.Sprintf(
			"fsGroup %d is not applied to volume %q (%s): its files keep their groups. Let the pod have one of those in securityContext.supplementalGroups.",
			*args.FsGroup, name, u.record.Plugin))
	}
}

// tellShortfalls tells a pod, when its volume is set up for the first time, what
// it asks for and does not get.
func (o *operationExecutor) tellShortfalls(u *setUp) {
	if o.events == nil {
		return
	}
	plugin, err := o.plugins.FindPluginByName(u.record.Plugin)
	if err != nil {
		return // it has just set the volume up
	}
	for _, s := range podcheck.Shortfalls(plugin, u.record.Spec(), u.pod) {
		o.events.Event(u.pod, v1.EventTypeNormal, s.Reason, s.Message)
	}
}

// event tells the pod of a failure, in the kubelet's words. They name the volume as its
// directory does, or as the pod does while its claim is not resolved. A volume that waits
// for its claim or its attachment has not failed.
func (o *operationExecutor) event(u *setUp, err error) {
	if o.events == nil {
		return
	}
	if _, waits := errors.AsType[*AttachmentError](err); waits || errors.Is(err, claimbinding.ErrUnbound) {
		return
	}
	reason, step := failedStep(err, u.mapping != nil)
	for _, name := range u.record.Volumes {
		o.events.Event(u.pod, v1.EventTypeWarning, reason,
			fmt.Sprintf("%s failed for volume %q : %v", step, cmp.Or(u.record.Spec().Name(), name), wrap(u.record, name, "SetUp", err)))
	}
}

// failedStep are the kubelet's words for the part of a set-up that has failed.
func failedStep(err error, block bool) (reason, step string) {
	op := "SetUp"
	if own, ok := errors.AsType[*volume.Error](err); ok {
		op = own.Op
	}
	switch {
	case block && op == "SetUp":
		return "FailedMapVolume", "MapVolume"
	case block:
		return "FailedMapVolume", "MapVolume." + op
	case op == "MountDevice" || op == "WaitForAttach":
		return "FailedMount", "MountVolume." + op
	}
	return "FailedMount", "MountVolume.SetUp"
}
