package payload

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/kubeapi"
)

// ConfigMap translates a configMap volume; false means that it is of another kind. It does not
// check anything.
func ConfigMap(v *v1.Volume) (Projection, bool) {
	s := v.ConfigMap
	if s == nil {
		return Projection{}, false
	}
	const field = "configMap"
	return Projection{
		Field:       field,
		DefaultMode: s.DefaultMode,
		DefaultUser: kubeapi.DefaultUser(s),
		Sources: []Source{{Field: field, VolumeProjection: v1.VolumeProjection{
			ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: s.LocalObjectReference, Items: s.Items, Optional: s.Optional},
		}}},
	}, true
}

// Secret translates a secret volume; false means that it is of another kind. It does not
// check anything.
func Secret(v *v1.Volume) (Projection, bool) {
	s := v.Secret
	if s == nil {
		return Projection{}, false
	}
	const field = "secret"
	return Projection{
		Field:       field,
		DefaultMode: s.DefaultMode,
		DefaultUser: kubeapi.DefaultUser(s),
		Sources: []Source{{Field: field, VolumeProjection: v1.VolumeProjection{
			Secret: &v1.SecretProjection{
				LocalObjectReference: v1.LocalObjectReference{Name: s.SecretName}, Items: s.Items, Optional: s.Optional,
			},
		}}},
	}, true
}

// DownwardAPI translates a downwardAPI volume; false means that it is of another kind. It does not
// check anything.
func DownwardAPI(v *v1.Volume) (Projection, bool) {
	s := v.DownwardAPI
	if s == nil {
		return Projection{}, false
	}
	const field = "downwardAPI"
	return Projection{
		Field:       field,
		DefaultMode: s.DefaultMode,
		DefaultUser: kubeapi.DefaultUser(s),
		Sources: []Source{{Field: field, VolumeProjection: v1.VolumeProjection{
			DownwardAPI: &v1.DownwardAPIProjection{Items: s.Items},
		}}},
	}, true
}

// Projected translates a projected volume; false means that it is of another kind. It does not
// check anything.
func Projected(v *v1.Volume) (Projection, bool) {
	s := v.Projected
	if s == nil {
		return Projection{}, false
	}
	const field = "projected"
	p := Projection{Field: field, DefaultMode: s.DefaultMode, DefaultUser: kubeapi.DefaultUser(s)}
	for i := range s.Sources {
		p.Sources = append(p.Sources, NewSource(fmt.Sprintf("%s.sources[%d]", field, i), s.Sources[i]))
	}
	return p, true
}
