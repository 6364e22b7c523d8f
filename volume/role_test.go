package volume_test

import (
	"context"
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// both could be two roles.
type both struct{}

func (both) GetSecret(context.Context, string, string) (*v1.Secret, error) { return nil, nil }
func (both) GetConfigMap(context.Context, string, string) (*v1.ConfigMap, error) {
	return nil, nil
}

func TestRoleIsWhatItWasGivenAs(t *testing.T) {
	host := &volume.Host{Secrets: both{}}
	if _, err := volume.Role[volume.SecretGetter](host); err != nil {
		t.Error(err)
	}
	_, err := volume.Role[volume.ConfigMapGetter](host)
	if e, ok := errors.AsType[*volume.MissingRoleError](err); !ok || e.Role != "volume.ConfigMapGetter" {
		t.Errorf("a role that was not given: %v", err)
	}
	if advised := (&volume.MissingRoleError{Role: "volume.PodRunner", Advice: "do this"}).Error(); advised != "this node has no volume.PodRunner; do this" {
		t.Error(advised)
	}
	host.ConfigMaps = both{}
	if _, err := volume.Role[volume.ConfigMapGetter](host); err != nil {
		t.Error(err)
	}
}
