package payload

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/downward"
)

// Validate refuses what [validation.Files] leaves: sources that are not
// supported, and references to fields and resources that the pod does not
// have. The error is a *[volume.InvalidSpecError] or
// *[volume.UnsupportedError], marked with [volume.NothingDone].
func (p *Projection) Validate(pod *v1.Pod) error {
	for i := range p.Sources {
		s := &p.Sources[i]
		if s.PodCertificate != nil {
			return volume.NothingDone(fmt.Errorf("%s: %w", s.Field, volume.NewUnsupportedError("", "podCertificate")))
		}
		if s.DownwardAPI == nil {
			continue
		}
		for j := range s.DownwardAPI.Items {
			if err := checkReference(fmt.Sprintf("%s.items[%d]", s.Field, j), &s.DownwardAPI.Items[j], pod); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkReference(field string, item *v1.DownwardAPIVolumeFile, pod *v1.Pod) error {
	if item.FieldRef != nil {
		_, err := downward.VolumeField(field+".fieldRef", item.FieldRef)
		return err
	}
	_, err := downward.VolumeResource(field+".resourceFieldRef", item.ResourceFieldRef, pod)
	return err
}
