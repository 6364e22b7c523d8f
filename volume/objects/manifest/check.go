package manifest

import (
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apivalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/validation"
)

// check refuses an object that the API server would refuse. The object is no pod
// and no workload.
func check(p placed) error {
	switch o := p.object.(type) {
	case *v1.PersistentVolume:
		return validation.PersistentVolume(o)
	case *v1.PersistentVolumeClaim:
		return validation.PersistentVolumeClaim(o)
	case *v1.ConfigMap:
		return errors.Join(checkName(p), checkConfigMap(o))
	case *v1.Secret:
		return errors.Join(checkName(p), checkKeys("data", o.Data))
	case *storagev1.StorageClass:
		return validation.StorageClass(o)
	}
	if bundle, ok := kubeapi.TrustBundleOf(p.object); ok {
		return errors.Join(volume.CheckPathSegment("metadata.name", bundle.Name), checkBundle(bundle.PEM))
	}
	return checkName(p)
}

func checkName(p placed) error {
	name := p.object.GetName()
	if name == "" {
		return volume.Invalid("metadata.name", "must not be empty")
	}
	if wrong := apivalidation.IsDNS1123Subdomain(name); len(wrong) > 0 {
		return volume.Invalid("metadata.name", "%q is no valid name: %s", name, strings.Join(wrong, "; "))
	}
	if ns := p.object.GetNamespace(); ns != "" {
		if wrong := apivalidation.IsDNS1123Label(ns); len(wrong) > 0 {
			return volume.Invalid("metadata.namespace", "%q is no valid name: %s", ns, strings.Join(wrong, "; "))
		}
	}
	return nil
}

func checkConfigMap(o *v1.ConfigMap) error {
	faults := []error{checkKeys("data", o.Data), checkKeys("binaryData", o.BinaryData)}
	for _, key := range slices.Sorted(maps.Keys(o.BinaryData)) {
		if _, both := o.Data[key]; both {
			faults = append(faults, volume.Invalid(fmt.Sprintf("binaryData[%s]", key), "the key is in data already"))
		}
	}
	return errors.Join(faults...)
}

func checkKeys[V any](field string, data map[string]V) error {
	var faults []error
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if wrong := apivalidation.IsConfigMapKey(key); len(wrong) > 0 {
			faults = append(faults, volume.Invalid(fmt.Sprintf("%s[%s]", field, key), "%s", strings.Join(wrong, "; ")))
		}
	}
	return errors.Join(faults...)
}

func checkBundle(bundle string) error {
	if block, _ := pem.Decode([]byte(bundle)); block == nil {
		return volume.Invalid("spec.trustBundle", "must hold at least one PEM certificate")
	}
	return nil
}
