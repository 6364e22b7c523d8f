package embedded

import (
	"strings"
	"testing"

	"github.com/podvol/podvol/volume/persistentvolume/release"
)

// What a node finds in the mount table may say no more of a pod than its UID.
func TestAPodOfUnknownNameIsKnownByItsUID(t *testing.T) {
	m := Mounted{PodUID: "0c9e", Volume: "disk"}
	err := &release.InUseError{Volume: "disk", Uses: []release.Use{{By: m.podRef(), How: m.how()}}}
	if text := err.Error(); !strings.Contains(text, "used by Pod of unknown name (UID 0c9e, it is mounted)") {
		t.Errorf("it says %q", text)
	}
}
