package attachdetach

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

// attachable is a kind of volumes that may have to be attached.
type attachable interface {
	// uniqueName is the volume's name in the status of nodes.
	uniqueName(spec *volume.Spec) (v1.UniqueVolumeName, error)
	// attacher is who attaches it: a VolumeAttachment's spec.attacher.
	attacher(spec *volume.Spec) string
	// attaches reports whether a volume must be attached. It reads from the source.
	attaches(ctx context.Context, source objects.Getter, spec *volume.Spec) (bool, error)
}

// kindOf returns the kind of a PersistentVolume and its unique name; nil: none that is
// attached.
func (c *Controller) kindOf(spec *volume.Spec) (attachable, v1.UniqueVolumeName, error) {
	var kind attachable
	if spec.PersistentVolume.Spec.CSI != nil {
		kind = csiVolumes{}
	} else if plugin, ok := c.attachablePlugin(spec); ok {
		kind = pluginVolumes{plugin}
	} else {
		return nil, "", nil
	}
	name, err := kind.uniqueName(spec)
	return kind, name, err
}

func (c *Controller) attachablePlugin(spec *volume.Spec) (volume.AttachableVolumePlugin, bool) {
	if c.plugins == nil {
		return nil, false
	}
	plugin, err := c.plugins.FindPluginBySpec(spec)
	if err != nil {
		return nil, false
	}
	return volume.AsAttachable(plugin)
}

// csiPrefix begins the unique names of CSI drivers' volumes.
const csiPrefix = "kubernetes.io/csi/"

// attachmentName is the name that an attach/detach controller gives the VolumeAttachment of a
// volume to a node: for a CSI driver's the one by which the kubelet looks for it.
func attachmentName(volume v1.UniqueVolumeName, node types.NodeName) string {
	if of, ok := strings.CutPrefix(string(volume), csiPrefix); ok {
		driver, handle, _ := strings.Cut(of, "^")
		return pvapi.CSIAttachmentName(handle, driver, string(node))
	}
	sum := sha256.Sum256([]byte(string(volume) + "\x00" + string(node)))
	return "podvol-" + hex.EncodeToString(sum[:])
}

// csiVolumes are those of all CSI drivers: what must be known of them is in the API.
type csiVolumes struct{}

func (csiVolumes) uniqueName(spec *volume.Spec) (v1.UniqueVolumeName, error) {
	s := spec.PersistentVolume.Spec.CSI
	return v1.UniqueVolumeName(csiPrefix + s.Driver + "^" + s.VolumeHandle), nil
}

func (csiVolumes) attacher(spec *volume.Spec) string { return spec.PersistentVolume.Spec.CSI.Driver }

// attaches is as the driver's CSIDriver object says; one that is not there, or says nothing,
// means that it does.
func (csiVolumes) attaches(ctx context.Context, source objects.Getter, spec *volume.Spec) (bool, error) {
	object, err := objects.Get[*storagev1.CSIDriver](ctx, source, volume.NewObjectRef(kindDriver, "", spec.PersistentVolume.Spec.CSI.Driver))
	if errors.Is(err, volume.ErrNotFound) {
		return true, nil
	}
	return err == nil && (object.Spec.AttachRequired == nil || *object.Spec.AttachRequired), err
}

// pluginVolumes are those of a plugin.
type pluginVolumes struct {
	plugin volume.AttachableVolumePlugin
}

func (k pluginVolumes) uniqueName(spec *volume.Spec) (v1.UniqueVolumeName, error) {
	return uniqueName(k.plugin, spec)
}

func uniqueName(plugin volume.VolumePlugin, spec *volume.Spec) (v1.UniqueVolumeName, error) {
	name, err := plugin.GetVolumeName(spec)
	return v1.UniqueVolumeName(plugin.GetPluginName() + "/" + name), err
}

// attacher is the plugin's name, turned round as it may have no slash:
// "iscsi.kubernetes.io".
func (k pluginVolumes) attacher(*volume.Spec) string {
	parts := strings.Split(k.plugin.GetPluginName(), "/")
	slices.Reverse(parts)
	return strings.Join(parts, ".")
}

func (k pluginVolumes) attaches(ctx context.Context, _ objects.Getter, spec *volume.Spec) (bool, error) {
	return k.plugin.CanAttach(ctx, spec)
}
