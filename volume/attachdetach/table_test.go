package attachdetach

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume/objects"
)

// noted is an attachment to node n0.
func noted(volume v1.UniqueVolumeName) *attachment {
	object := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "uid-a"}}
	object.Spec.NodeName, object.Status.Attached = "n0", true
	return &attachment{object: object, volume: volume}
}

// A worker that is late with an old version changes nothing, not even for a moment.
func TestAnOldVersionOfAnAttachmentIsNotNoted(t *testing.T) {
	table := newAttachedTable()
	isLast := func(last bool) func() bool { return func() bool { return last } }
	table.put("a", noted("old"), isLast(false))
	if _, known := table.last("a"); known {
		t.Error("an attachment that is gone is known again")
	}
	table.put("a", noted("new"), isLast(true))
	table.put("a", noted("old"), isLast(false))
	if now, _ := table.last("a"); now.volume != "new" {
		t.Errorf("the attachment is of %q", now.volume)
	}
	if prior := table.put("a", nil, isLast(false)); prior != nil || len(table.on("n0")) != 1 {
		t.Error("a deletion that is not the last word removes the attachment")
	}
}

// A volume that is to go stays in the list of a node whose status says that it uses it: the
// write is refused if that is not the newest version, so it orders both.
func TestAVolumeInUseStaysListed(t *testing.T) {
	c := New(Config{Objects: objects.NewStore()})
	leaving := noted("disk")
	leaving.leaving = true
	c.attached.put("a", leaving, func() bool { return true })
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"}}
	if list := c.listFor(node); len(list) > 0 {
		t.Errorf("a volume that nobody uses is still listed: %v", list)
	}
	node.Status.VolumesInUse = []v1.UniqueVolumeName{"disk"}
	if list := c.listFor(node); len(list) != 1 || list[0].Name != "disk" {
		t.Errorf("a volume in use is not listed: %v", list)
	}
}
