package release_test

import (
	"errors"
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume/release"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

// remoteDisk has exports attached like remote disks. A verifier calls none of its own methods.
type remoteDisk struct {
	volume.VolumePlugin
	attaching
}

// attaching is one level deeper than the plugin, whose methods so come first.
type attaching struct{ volume.AttachableVolumePlugin }

// specAttacher is what the plugin is that attaches for a controller.
type specAttacher struct {
	volume.VolumePlugin
	attachingSpecs
}

type attachingSpecs struct{ volume.SpecAttacher }

func attachmentOf(pv, node string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "attachment-of-" + pv},
		Spec: storagev1.VolumeAttachmentSpec{Attacher: "disks", NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}}}
}

// What is attached somewhere is not destroyed, also where no pod has it any more.
func TestAnAttachedVolumeIsKept(t *testing.T) {
	disks, err := volume.NewVolumePluginMgr([]volume.VolumePlugin{remoteDisk{VolumePlugin: nfs.New(nfs.Config{})}}, &volume.Host{})
	if err != nil {
		t.Fatal(err)
	}
	verify := func(objects ...metav1.Object) error {
		return (&release.Verifier{Objects: pvbuild.StoreOf(t, append(objects, released())...), Plugins: disks}).VerifyReleased(t.Context(), released())
	}
	if err := verify(attachmentOf("pv1", "n0")); !errors.Is(err, volume.ErrInUse) || !strings.Contains(err.Error(), "VolumeAttachment attachment-of-pv1 (it is attached to node n0)") {
		t.Errorf("attached: %v", err)
	}
	onlySpec, err := volume.NewVolumePluginMgr([]volume.VolumePlugin{specAttacher{VolumePlugin: nfs.New(nfs.Config{})}}, &volume.Host{})
	if err != nil {
		t.Fatal(err)
	}
	store := pvbuild.StoreOf(t, attachmentOf("pv1", "n0"), released())
	if err := (&release.Verifier{Objects: store, Plugins: onlySpec}).VerifyReleased(t.Context(), released()); !errors.Is(err, volume.ErrInUse) {
		t.Errorf("attached by a plugin that a controller calls: %v", err)
	}
	if err := verify(attachmentOf("pv2", "n0")); err != nil {
		t.Errorf("another is attached: %v", err)
	}
	unread := blind{pvbuild.StoreOf(t, released()), "VolumeAttachment"}
	if err := (&release.Verifier{Objects: unread, Plugins: disks}).VerifyReleased(t.Context(), released()); !errors.Is(err, errLookUp) || volume.IsUncertain(err) {
		t.Errorf("attachments cannot be read: %v", err)
	}
	if err := verifier(t, unread).VerifyReleased(t.Context(), released()); err != nil {
		t.Errorf("a plugin that attaches nothing: %v", err)
	}
}
