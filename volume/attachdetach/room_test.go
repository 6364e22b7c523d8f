package attachdetach

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A volume without room waits as soon as that is found: what goes directly afterwards wakes it.
func TestAVolumeWithoutRoomWaitsAtOnce(t *testing.T) {
	table, at := newAttachedTable(), place{"n0", "disk.example.com"}
	has := &attachment{volume: "a", object: &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "n0", Attacher: at.attacher}}}
	always := func() bool { return true }
	table.put("a", has, always)
	if _, ok := table.reserve("b", at, 1); ok {
		t.Fatal("two volumes have room for one")
	}
	if woken := table.roomAfter(table.put("a", nil, always)); !slices.Equal(woken, []v1.UniqueVolumeName{"b"}) {
		t.Errorf("woken: %v", woken)
	}
}

// A volume that is made takes room twice for a moment, and one that cannot be made leaves it:
// both wake what waits.
func TestRoomThatIsGivenBackWakes(t *testing.T) {
	table, at := newAttachedTable(), place{"n0", "disk.example.com"}
	release, ok := table.reserve("a", at, 1)
	if !ok {
		t.Fatal("no room for the first")
	}
	if _, ok := table.reserve("b", at, 1); ok {
		t.Fatal("two volumes have room for one")
	}
	if woken := release(); !slices.Equal(woken, []v1.UniqueVolumeName{"b"}) {
		t.Errorf("woken: %v", woken)
	}
	if release, ok = table.reserve("b", at, 1); !ok {
		t.Fatal("the room was not given back")
	}
	if woken := release(); len(woken) > 0 {
		t.Errorf("woken: %v", woken)
	}
}
