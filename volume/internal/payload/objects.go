package payload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
)

// keyed adds the files of a config map or secret: all keys, or those that
// items name. Immutable objects are read like any other; that they need not be
// watched is for the caller to know.
func (c *collector) keyed(ctx context.Context, at string, k keyed) error {
	ref := volume.NewObjectRef(k.kind, c.pod.Namespace, k.name)
	data, err := c.read(ctx, ref)
	if errors.Is(err, volume.ErrNotFound) && k.optional {
		return nil
	}
	if err != nil {
		return lookUpError(at, ref, err)
	}
	if len(k.items) == 0 {
		return c.allKeys(at, ref, data)
	}
	var errs []error
	for i, item := range k.items {
		itemField := fmt.Sprintf("%s.items[%d]", at, i)
		switch value, ok := data[item.Key]; {
		case ok:
			errs = append(errs, c.add(itemField, item.Path, value, item.Mode, kubeapi.User(&item)))
		case !k.optional:
			errs = append(errs, &MissingError{Field: itemField, Ref: ref, Key: item.Key})
		}
	}
	return errors.Join(errs...)
}

func (c *collector) allKeys(at string, ref volume.ObjectRef, data map[string][]byte) error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(data)) {
		// The API would not have taken such a key, but not every object has
		// been through the API.
		if faults := validation.IsConfigMapKey(key); len(faults) > 0 {
			errs = append(errs, fmt.Errorf("%s: %s: key %q cannot be a file's name: %s", at, ref, key, strings.Join(faults, "; ")))
			continue
		}
		errs = append(errs, c.add(at, key, data[key], nil, nil))
	}
	return errors.Join(errs...)
}

// read returns an object's data by key. The caller must not change the bytes.
func (c *collector) read(ctx context.Context, ref volume.ObjectRef) (map[string][]byte, error) {
	if ref.Kind == "Secret" {
		role, err := volume.Role[volume.SecretGetter](c.host)
		if err != nil {
			return nil, err
		}
		secret, err := role.GetSecret(ctx, ref.Namespace, ref.Name)
		if err != nil {
			return nil, err
		}
		return secret.Data, nil
	}
	role, err := volume.Role[volume.ConfigMapGetter](c.host)
	if err != nil {
		return nil, err
	}
	configMap, err := role.GetConfigMap(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return nil, err
	}
	data := make(map[string][]byte, len(configMap.Data)+len(configMap.BinaryData))
	for key, value := range configMap.Data {
		data[key] = []byte(value)
	}
	maps.Copy(data, configMap.BinaryData)
	return data, nil
}
