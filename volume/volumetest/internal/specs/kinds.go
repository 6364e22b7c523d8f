package specs

import (
	"reflect"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// OfEachKind returns a spec of every kind of source, by words for the kind.
func OfEachKind() map[string]*volume.Spec {
	specs := map[string]*volume.Spec{}
	for name, source := range sources[v1.VolumeSource]() {
		specs["an inline "+name] = volume.NewSpecFromVolume(&v1.Volume{Name: "vol", VolumeSource: source})
	}
	for name, source := range sources[v1.PersistentVolumeSource]() {
		specs["a PersistentVolume of "+name] = volume.NewSpecFromPersistentVolume(PersistentVolume(source), false)
	}
	return specs
}

// KindsOf returns the kinds of a spec, in the words of OfEachKind: one, in a spec
// that is valid.
func KindsOf(spec *volume.Spec) (kinds []string) {
	switch {
	case spec == nil:
	case spec.Volume != nil:
		for _, name := range setFields(spec.Volume.VolumeSource) {
			kinds = append(kinds, "an inline "+name)
		}
	case spec.PersistentVolume != nil:
		for _, name := range setFields(spec.PersistentVolume.Spec.PersistentVolumeSource) {
			kinds = append(kinds, "a PersistentVolume of "+name)
		}
	}
	return kinds
}

// setFields names the fields of an API's union that are set.
func setFields(union any) (names []string) {
	value := reflect.ValueOf(union)
	for field := range value.Type().Fields() {
		if field.Type.Kind() == reflect.Pointer && !value.FieldByIndex(field.Index).IsNil() {
			names = append(names, field.Name)
		}
	}
	return names
}

// sources returns, for each field of the API's union S, a value with just that
// field, empty.
func sources[S any]() map[string]S {
	all := map[string]S{}
	for field := range reflect.TypeFor[S]().Fields() {
		if field.Type.Kind() != reflect.Pointer {
			continue
		}
		var source S
		reflect.ValueOf(&source).Elem().FieldByIndex(field.Index).Set(reflect.New(field.Type.Elem()))
		all[field.Name] = source
	}
	return all
}
