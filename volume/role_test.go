package volume_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
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

// What lacks is named as who configures a host has to spell it, for each role that
// a host can have.
func TestAMissingRoleIsNamedAsItsField(t *testing.T) {
	host := &volume.Host{}
	missing := map[string]error{}
	_, missing["Secrets"] = volume.Role[volume.SecretGetter](host)
	_, missing["ConfigMaps"] = volume.Role[volume.ConfigMapGetter](host)
	_, missing["Tokens"] = volume.Role[volume.TokenRequester](host)
	_, missing["TrustBundles"] = volume.Role[volume.TrustBundleGetter](host)
	_, missing["PodCertificates"] = volume.Role[volume.PodCertificateRequester](host)
	_, missing["Allocatable"] = volume.Role[volume.AllocatableGetter](host)
	_, missing["Events"] = volume.Role[volume.EventSink](host)
	_, missing["HostFiles"] = volume.Role[volume.HostFiles](host)
	_, missing["Pods"] = volume.Role[volume.PodRunner](host)
	_, missing["Releases"] = volume.Role[volume.ReleaseVerifier](host)
	_, missing["CSIDrivers"] = volume.Role[volume.CSIDriverGetter](host)
	_, missing["Attachments"] = volume.Role[volume.AttachmentGetter](host)
	_, missing["CSINode"] = volume.Role[volume.CSINodePublisher](host)
	_, missing["Endpoints"] = volume.Role[volume.EndpointsGetter](host)
	fields := 0
	for _, field := range reflect.VisibleFields(reflect.TypeFor[volume.Host]()) {
		if field.Type.Kind() != reflect.Interface || field.Name == "Mounter" {
			continue
		}
		fields++
		e, ok := errors.AsType[*volume.MissingRoleError](missing[field.Name])
		if !ok || e.Field != field.Name || !strings.Contains(e.Error(), "set "+field.Name+" in") {
			t.Errorf("%s: %v", field.Name, missing[field.Name])
		}
	}
	if fields != len(missing) {
		t.Errorf("%d roles of %d are looked at", len(missing), fields)
	}
}
