package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/drivers"
)

// driverSpec is what a CSIDriver object says to the node, with the API's defaults.
type driverSpec struct {
	attach, podInfo, republish, seLinuxMount, tokensInSecrets bool
	lifecycles                                                []storagev1.VolumeLifecycleMode
	fsGroup                                                   storagev1.FSGroupPolicy
	tokens                                                    []storagev1.TokenRequest
}

// driverSpecOf reads a driver's object. A look-up that fails has done nothing.
func (p *Plugin) driverSpecOf(ctx context.Context, name string) (*driverSpec, error) {
	getter, err := volume.Role[volume.CSIDriverGetter](p.Host)
	if err != nil { // without the role there are no objects
		return p.defaultDriverSpec(name), nil
	}
	object, err := getter.GetCSIDriver(ctx, name)
	if errors.Is(err, volume.ErrNotFound) {
		return p.defaultDriverSpec(name), nil
	}
	if err != nil {
		return nil, volume.NothingDone(fmt.Errorf("CSIDriver %q cannot be read: %w", name, err))
	}
	if p.cluster.told.setPeriod(name, object.Spec.NodeAllocatableUpdatePeriodSeconds) {
		p.cluster.names.Enqueue(name)
	}
	t := newDriverSpec(&object.Spec)
	if err := t.checkFSGroup(name); err != nil {
		return nil, err
	}
	return t, nil
}

// checkFSGroup refuses a policy that the API does not have: nobody can say what it asks for.
func (t *driverSpec) checkFSGroup(driver string) error {
	if known := []storagev1.FSGroupPolicy{storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy}; !slices.Contains(known, t.fsGroup) {
		return volume.Invalid("fsGroupPolicy", "of CSIDriver %.128q is %.128q; it must be one of %v", driver, t.fsGroup, known)
	}
	return nil
}

func (p *Plugin) defaultDriverSpec(name string) *driverSpec {
	spec := p.config.Defaults[name] // which may be empty
	return newDriverSpec(&spec)
}

func isTrue(b *bool) bool { return b != nil && *b }

func newDriverSpec(spec *storagev1.CSIDriverSpec) *driverSpec {
	t := &driverSpec{
		attach: spec.AttachRequired == nil || *spec.AttachRequired, podInfo: isTrue(spec.PodInfoOnMount),
		republish: isTrue(spec.RequiresRepublish), seLinuxMount: isTrue(spec.SELinuxMount),
		tokensInSecrets: isTrue(kubeapi.ServiceAccountTokenInSecrets(spec)),
		lifecycles:      spec.VolumeLifecycleModes, tokens: spec.TokenRequests, fsGroup: storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy,
	}
	if len(t.lifecycles) == 0 {
		t.lifecycles = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	}
	if spec.FSGroupPolicy != nil && *spec.FSGroupPolicy != "" {
		t.fsGroup = *spec.FSGroupPolicy
	}
	return t
}

// checkLifecycle refuses a kind of volume that the driver does not offer.
func (t *driverSpec) checkLifecycle(s *source) error {
	mode := storagev1.VolumeLifecyclePersistent
	if s.Inline {
		mode = storagev1.VolumeLifecycleEphemeral
	}
	if slices.Contains(t.lifecycles, mode) {
		return nil
	}
	return volume.Invalid("csi.driver", "%s has no %s volumes; its CSIDriver object lists %v (volumeLifecycleModes)", drivers.Shown(s.Driver), mode, t.lifecycles)
}
