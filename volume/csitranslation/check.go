package csitranslation

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/podvol/podvol/volume"
)

// resourceGroup is the annotation with an Azure share's resource group.
const resourceGroup = "kubernetes.io/azure-file-resource-group"

// checkSource refuses names and zones that would give the handle other parts than it has.
func checkSource(spec *volume.Spec) error {
	if spec.PersistentVolume == nil {
		return checkVolume(&spec.Volume.VolumeSource)
	}
	pv := spec.PersistentVolume
	for _, label := range []string{v1.LabelFailureDomainBetaZone, v1.LabelTopologyZone} {
		if zones := pv.Labels[label]; zones != "" {
			if err := checkZones("label "+label, strings.Split(zones, "__")); err != nil {
				return err
			}
		}
	}
	s := &pv.Spec.PersistentVolumeSource
	if s.AzureFile != nil {
		return checkShare(s.AzureFile.ShareName, s.AzureFile.SecretName, pv.Annotations[resourceGroup])
	}
	if s.Cinder != nil {
		return checkSegment("cinder.volumeID", s.Cinder.VolumeID)
	}
	return checkVolume(&v1.VolumeSource{
		AWSElasticBlockStore: s.AWSElasticBlockStore, AzureDisk: s.AzureDisk, GCEPersistentDisk: s.GCEPersistentDisk,
		VsphereVolume: s.VsphereVolume, PortworxVolume: s.PortworxVolume,
	})
}

func checkVolume(s *v1.VolumeSource) error {
	switch {
	case s.AWSElasticBlockStore != nil:
		_, id, isURL := strings.Cut(s.AWSElasticBlockStore.VolumeID, "aws://")
		if !isURL {
			return checkSegment("awsElasticBlockStore.volumeID", s.AWSElasticBlockStore.VolumeID)
		}
		return checkPath("awsElasticBlockStore.volumeID", id)
	case s.AzureDisk != nil:
		return checkPath("azureDisk.diskURI", s.AzureDisk.DataDiskURI)
	case s.AzureFile != nil:
		return checkShare(s.AzureFile.ShareName, s.AzureFile.SecretName, "")
	case s.Cinder != nil:
		return checkSegment("cinder.volumeID", s.Cinder.VolumeID)
	case s.GCEPersistentDisk != nil:
		return checkSegment("gcePersistentDisk.pdName", s.GCEPersistentDisk.PDName)
	case s.PortworxVolume != nil:
		return checkSegment("portworxVolume.volumeID", s.PortworxVolume.VolumeID)
	case s.VsphereVolume != nil:
		return checkPath("vsphereVolume.volumePath", s.VsphereVolume.VolumePath)
	}
	return nil
}

// checkShare checks the parts of azureFile's handle, which has "#" between them.
func checkShare(share, secret, group string) error {
	parts := []struct{ field, value string }{{"azureFile.shareName", share}, {"azureFile.secretName", secret}}
	if group != "" {
		parts = append(parts, struct{ field, value string }{"annotation " + resourceGroup, group})
	}
	for _, part := range parts {
		if err := checkSegment(part.field, part.value); err != nil {
			return err
		}
		if strings.Contains(part.value, "#") {
			return volume.Invalid(part.field, "must not contain %q: %.80q", "#", part.value)
		}
	}
	return nil
}

// checkSegment refuses what is more than one part of a handle, or none.
func checkSegment(field, value string) error { return volume.CheckPathSegment(field, value) }

// checkPath refuses a path or URI that leads upwards, or cannot be sent to a driver.
func checkPath(field, value string) error {
	switch {
	case value == "":
		return volume.Invalid(field, "must not be empty")
	case !utf8.ValidString(value) || strings.ContainsFunc(value, unicode.IsControl):
		return volume.Invalid(field, "must be UTF-8 without control characters: %.80q", value)
	case slices.Contains(strings.Split(value, "/"), ".."):
		return volume.Invalid(field, "must not contain %q: %.80q", "..", value)
	}
	return nil
}

// checkHandle refuses a translation that names no volume.
func checkHandle(pv *v1.PersistentVolume) error {
	return checkPath("handle of the translated volume "+pv.Name, pv.Spec.CSI.VolumeHandle)
}

// checkClass refuses the zones of a class that are none.
func checkClass(class *storagev1.StorageClass) error {
	for name, value := range class.Parameters {
		var zones []string
		switch strings.ToLower(name) {
		case "zone":
			zones = []string{value}
		case "zones":
			zones = strings.Split(value, ",")
		}
		if err := checkZones("parameter "+name, zones); err != nil {
			return err
		}
	}
	return nil
}

func checkZones(field string, zones []string) error {
	for _, zone := range zones {
		if err := checkSegment(field, zone); err != nil {
			return err
		}
	}
	return nil
}
