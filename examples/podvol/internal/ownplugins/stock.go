package ownplugins

import (
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/csitranslation"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/plugins/csi/controller"
	"github.com/podvol/podvol/volume/plugins/hostpath"
	"github.com/podvol/podvol/volume/plugins/image"
)

// Stock are plugins that describe volumes: they are never initialised.
func Stock() []volume.VolumePlugin {
	drivers, err := controller.New(controller.Config{})
	if err != nil {
		return plugins.All(image.New(image.Config{}))
	}
	return plugins.All(image.New(image.Config{}), csitranslation.NewClaims(drivers, csitranslation.New()))
}

// Known are plugins of all that podvol's commands have, for nodes and for claims, and how in-tree volumes
// become drivers' volumes. They describe volumes: they are never initialised.
func Known() ([]volume.VolumePlugin, volume.Translator, error) {
	drivers, err := controller.ForNode(csi.Config{})
	if err != nil {
		return nil, nil, err
	}
	directories := hostpath.New(hostpath.Config{Provision: hostpath.ProvisionConfig{Bases: []hostpath.Base{{}}}})
	return append(Stock(), drivers, directories), csitranslation.New(), nil
}

// DeletesStorage reports whether podvol deletes the storage of a volume once its claim has
// left it: as a plugin of its own, or as a driver that has made it for podvol, which must
// be named then.
func DeletesStorage(pv *v1.PersistentVolume) bool {
	return persistentvolume.DeletesStorage(pv, Stock())
}

// FlagFor is the flag that a command needs to delete a volume's storage; empty: none.
func FlagFor(pv *v1.PersistentVolume) []string {
	if driver := DriverOf(pv); driver != "" {
		return []string{"--csi-driver", driver + "=SOCKET"}
	}
	return nil
}

// DriverOf is the CSI driver that has a volume, also as one of an in-tree type; empty: none.
func DriverOf(pv *v1.PersistentVolume) string {
	if pv.Spec.CSI != nil {
		return pv.Spec.CSI.Driver
	}
	return pv.Annotations["pv.kubernetes.io/migrated-to"]
}
