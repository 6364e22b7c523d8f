package persistentvolume

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
)

var errNoPlugins = errors.New("the controller has no plugins; give it some, or use persistentVolumeReclaimPolicy: Retain")

// driverOf returns the CSI driver in whose name an in-tree provisioner's volumes are made; else
// the provisioner.
func (c ControllerConfig) driverOf(provisioner string) string {
	driver := ""
	if c.MigratedTo != nil {
		driver = c.MigratedTo(provisioner)
	} else {
		driver = volume.MigratedTo(pvapi.PluginsOf(c.Plugins), provisioner)
	}
	return cmp.Or(driver, provisioner)
}

// isForeign reports whether another process provisions and deletes volumes of this
// provisioner's name.
func isForeign(provisioner string, plugins []volume.VolumePlugin) bool {
	return provisioner != "" && !strings.HasPrefix(provisioner, pvapi.TreePrefix) &&
		!slices.ContainsFunc(plugins, func(p volume.VolumePlugin) bool { return volume.ProvisionsFor(p, provisioner) })
}

// DeletesStorage reports whether a controller with these plugins deletes the
// storage of a volume once its claim has left it: its reclaim policy is Delete, a
// claim has or had it, and neither another process nor a CSI driver has
// provisioned it, which then deletes it. Whether a plugin can, only the deletion
// shows. The volume's finalizers do not count; there is no I/O.
func DeletesStorage(pv *v1.PersistentVolume, plugins []volume.VolumePlugin) bool {
	ref := pv.Spec.ClaimRef
	return pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete && ref != nil && ref.UID != "" &&
		!pvapi.IsOfDriver(pv, plugins) && !isMadeElsewhere(pv, plugins)
}

// isMadeElsewhere reports whether another process has provisioned a volume, and deletes it.
// A plugin that provisions for drivers of any name makes volumes of its own kind alone.
func isMadeElsewhere(pv *v1.PersistentVolume, plugins []volume.VolumePlugin) bool {
	provisioner, spec := pv.Annotations[pvapi.AnnProvisionedBy], volume.NewSpecFromPersistentVolume(pv, false)
	return isForeign(provisioner, slices.DeleteFunc(slices.Clone(plugins), func(p volume.VolumePlugin) bool {
		return p.GetPluginName() != provisioner && !p.CanSupport(spec)
	}))
}

// holdsStorage reports whether a volume stays until its storage was deleted here, by one of
// some finalizers.
func holdsStorage(pv *v1.PersistentVolume, finalizers []string) bool {
	return slices.ContainsFunc(finalizers, func(held string) bool { return slices.Contains(pv.Finalizers, held) })
}
