package persistentvolume

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
)

// DeletesStorage reports whether a controller with these plugins deletes the
// storage of a volume once its claim has left it: its reclaim policy is Delete, a
// claim has or had it, and it was not provisioned by somebody else, nor is it a CSI
// driver's, who then deletes it. Whether a plugin can, only the deletion shows. The volume's finalizers
// do not count; there is no I/O.
func DeletesStorage(pv *v1.PersistentVolume, plugins []volume.VolumePlugin) bool {
	ref := pv.Spec.ClaimRef
	return pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete && ref != nil && ref.UID != "" &&
		!isOfDriver(pv, plugins) && !isForeign(pv.Annotations[pvapi.AnnProvisionedBy], plugins)
}

// isOfDriver reports whether a driver elsewhere does what a volume's reclaim policy
// says: it was migrated to that driver, or it is a CSI volume which none of the
// plugins supports.
func isOfDriver(pv *v1.PersistentVolume, plugins []volume.VolumePlugin) bool {
	if pv.Annotations[pvapi.AnnMigratedTo] == "" && pv.Spec.CSI == nil {
		return false
	}
	if driver := pv.Annotations[pvapi.AnnMigratedTo]; driver != "" {
		return !slices.ContainsFunc(plugins, func(p volume.VolumePlugin) bool { return p.GetPluginName() == driver })
	}
	spec := volume.NewSpecFromPersistentVolume(pv, false)
	return !slices.ContainsFunc(plugins, func(p volume.VolumePlugin) bool { return p.CanSupport(spec) })
}

// isForeign reports whether somebody else provisions and deletes volumes of this
// provisioner's name.
func isForeign(provisioner string, plugins []volume.VolumePlugin) bool {
	return provisioner != "" && !strings.HasPrefix(provisioner, pvapi.TreePrefix) &&
		!slices.ContainsFunc(plugins, func(p volume.VolumePlugin) bool { return p.GetPluginName() == provisioner })
}

// isExternal is isForeign for the controller's own plugins.
func (c *Controller) isExternal(provisioner string) bool {
	if c.isBeside() {
		return c.pluginFor(provisioner) == ""
	}
	return isForeign(provisioner, c.allPlugins())
}

func (c *Controller) allPlugins() []volume.VolumePlugin {
	if c.plugins == nil {
		return nil
	}
	return c.plugins.Plugins()
}
