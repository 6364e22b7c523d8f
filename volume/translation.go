package volume

import (
	"errors"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// Translator turns volumes whose code Kubernetes has moved to CSI drivers, such as
// gcePersistentDisk, into volumes of these drivers. Absent: those types are refused with an
// *[UnsupportedError]. Its methods do no I/O, do not change their arguments, and may be called
// concurrently.
type Translator interface {
	// Translate returns the CSI volume, a PersistentVolume with [Spec.Migrated] set, also for a
	// pod's inline volume. podNamespace is the namespace of the pod. A spec of a type that it
	// does not translate is returned as it is. The error is an *[InvalidSpecError].
	Translate(spec *Spec, podNamespace string) (*Spec, error)
}

// ProvisionTranslator is a [Translator] that knows of storage classes, too: those whose
// provisioner is an in-tree plugin's name, such as kubernetes.io/gce-pd. Absent: volumes of
// these classes are not made, and not deleted.
type ProvisionTranslator interface {
	Translator
	// MigratedTo returns the name of the CSI driver that has taken over the in-tree plugin of a
	// name; empty: none has.
	MigratedTo(plugin string) string
	// TranslateClass returns the class with the driver's provisioner, parameters and topology.
	TranslateClass(class *storagev1.StorageClass) (*storagev1.StorageClass, error)
	// TranslateBack returns a volume that a driver has made for such a class with the in-tree
	// source, as the API keeps it.
	TranslateBack(pv *v1.PersistentVolume) (*v1.PersistentVolume, error)
}

// Translate returns the spec as t translates it; nil translates nothing. A spec that one of
// the plugins supports as it is stays. m may be nil: it has no plugins then.
func (m *VolumePluginMgr) Translate(t Translator, spec *Spec, podNamespace string) (*Spec, error) {
	if t == nil {
		return spec, nil
	}
	translated, err := t.Translate(spec, podNamespace)
	if translated == spec && err == nil {
		return spec, nil
	}
	if m != nil {
		_, unsupported := m.FindPluginBySpec(spec)
		if _, is := errors.AsType[*UnsupportedError](unsupported); !is {
			return spec, nil
		}
	}
	if err != nil {
		return nil, NothingDone(err)
	}
	return translated, nil
}
