package volume

import "errors"

// Translator turns volumes whose code Kubernetes has moved to CSI drivers, such as
// gcePersistentDisk, into volumes of these drivers. Absent: those types are refused with an
// *[UnsupportedError]. Its methods do no I/O, do not change their arguments, and may be called
// concurrently.
type Translator interface {
	// Translate returns the CSI volume, a PersistentVolume with [Spec.Migrated] set, also for a
	// pod's inline volume. podNamespace is the namespace of the pod. A spec of a type that it
	// does not translate is returned as it is. The error is an *[InvalidSpecError].
	Translate(spec *Spec, podNamespace string) (*Spec, error)
	// Plugin returns the name of the in-tree plugin, such as kubernetes.io/gce-pd, whose volume
	// it translates; empty: it does not translate the spec.
	Plugin(spec *Spec) string
}

// MigratedProvisionerPlugin is implemented by plugins that make and delete volumes of CSI drivers
// also for storage classes whose provisioner is an in-tree plugin's name, such as
// kubernetes.io/gce-pd. Absent: only for names of drivers.
type MigratedProvisionerPlugin interface {
	NamedProvisionerPlugin
	// MigratedTo returns the name of the CSI driver that has taken over the in-tree plugin of a
	// name; empty: none has. It does no I/O, and the answer never changes.
	MigratedTo(plugin string) string
}

// MigratedTo returns the driver by which one of the plugins provisions for an in-tree plugin's
// name; empty: none does. See [MigratedProvisionerPlugin].
func MigratedTo(plugins []VolumePlugin, provisioner string) string {
	for _, p := range plugins {
		if c, ok := p.(MigratedProvisionerPlugin); ok && c.MigratedTo(provisioner) != "" {
			return c.MigratedTo(provisioner)
		}
	}
	return ""
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
