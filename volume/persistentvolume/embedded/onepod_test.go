package embedded_test

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
)

// A pod that goes has its claim mounted still: another one of its name, which is
// another pod, does not get it.
func TestAPodOfTheSameNameIsNoReasonToShareAClaim(t *testing.T) {
	m := newMachine(t)
	text := strings.ReplaceAll(static+claimOfStatic, "ReadWriteOnce", "ReadWriteOncePod")
	pod := func(uid string) string { return strings.Replace(web, "name: web", "name: web, uid: "+uid, 1) }
	m.run()
	m.mustBind(text + pod("one"))
	m.setMounted([]embedded.Mounted{{Pod: types.NamespacedName{Namespace: "default", Name: "web"}, PodUID: "one", Volume: "static", Claim: types.NamespacedName{Namespace: "default", Name: "data"}}})
	if err := m.bind(text + pod("two")); !errors.Is(err, persistentvolume.ErrUsedByOtherPod) {
		t.Errorf("err = %v", err)
	}
	m.setMounted(nil)
	if err := m.PodGone(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	m.mustBind(text + pod("two"))
}
