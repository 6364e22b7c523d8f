package attachdetach_test

import (
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

type volumeRef = volume.ObjectRef

var noPreconditions objects.Preconditions

func nodeRef(name string) volumeRef { return volume.NewObjectRef("Node", "", name) }
func pvRef(name string) volumeRef   { return volume.NewObjectRef("PersistentVolume", "", name) }
func claimRef(name string) volumeRef {
	return volume.NewObjectRef("PersistentVolumeClaim", "ops", name)
}

// attachmentRef is the kubelet's name of a VolumeAttachment.
func attachmentRef(disk, node string) volumeRef {
	return volume.NewObjectRef("VolumeAttachment", "", pvapi.CSIAttachmentName(disk, driver, node))
}

// foreignAttachment is one that no attach/detach controller has made.
func foreignAttachment(name, pv string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: driver, NodeName: "elsewhere", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}}}
}

func csiNode(node string, volumes int32) *storagev1.CSINode {
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
		{Name: driver, NodeID: node, Allocatable: &storagev1.VolumeNodeResources{Count: &volumes}},
	}}}
}

func csiDriver(attaches bool) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: storagev1.CSIDriverSpec{AttachRequired: &attaches}}
}
