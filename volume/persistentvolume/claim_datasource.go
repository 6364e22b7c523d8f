package persistentvolume

import (
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// canBeFilled reports whether the data source of a claim, if there is one, is
// somebody else's business, who makes the volumes of its class. Of a class that is
// not there yet nobody knows.
func (c *Controller) canBeFilled(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) bool {
	switch {
	case index.DataSourceOf(claim) == "":
		return true
	case class == nil:
		return pvapi.ClaimClass(claim, "") != ""
	}
	return class.Provisioner != noProvisioner && c.isExternal(class.Provisioner)
}
