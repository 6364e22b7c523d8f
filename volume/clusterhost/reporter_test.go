package clusterhost_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume/clusterhost"
)

// reporter takes down what it is told and asked; it has in use what it is told is
// attached, as a manager does that cannot read its records.
type reporter struct {
	log      []string
	attached []v1.UniqueVolumeName
	always   bool // attached stays as it is
}

func (r *reporter) WaitForRecovery(context.Context) error { return nil }
func (r *reporter) Subscribe(func(int)) (stop func())     { return func() {} }
func (r *reporter) VolumesInUse() []v1.UniqueVolumeName {
	r.log = append(r.log, "VolumesInUse")
	return slices.Clone(append([]v1.UniqueVolumeName{}, r.attached...))
}

func (r *reporter) ReportedInUse(names []v1.UniqueVolumeName) {
	r.log = append(r.log, fmt.Sprint("ReportedInUse ", names))
}

func (r *reporter) SetVolumesAttached(all []v1.AttachedVolume) {
	if r.always {
		return
	}
	r.attached = nil
	for _, a := range all {
		r.attached = append(r.attached, a.Name)
	}
	r.log = append(r.log, fmt.Sprint("SetVolumesAttached ", r.attached))
}

// What the status says is told before it is asked what is in use: a manager that cannot
// read its records has nothing else to go by.
func TestTheStatusIsToldBeforeItIsReplaced(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
		node.Status.VolumesInUse = []v1.UniqueVolumeName{"p/a", "p/b"}
		node.Status.VolumesAttached = []v1.AttachedVolume{{Name: "p/a"}}
		w.add(node)
		ctx, cancel := context.WithCancel(t.Context())
		r, ended := &reporter{}, make(chan error, 1)
		go func() {
			ended <- clusterhost.ReportVolumes(ctx, w.clientset, w.source(), "node1", r, clusterhost.ReportConfig{})
		}()
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		text := strings.Join(r.log, "\n")
		if want := "SetVolumesAttached [p/a]\nReportedInUse [p/a p/b]\nVolumesInUse\nSetVolumesAttached [p/a]"; !strings.HasPrefix(text, want) {
			t.Errorf("it was told\n%s", text)
		}
		if got := stored[*v1.Node](w, "Node", "", "node1").Status.VolumesInUse; !slices.Equal(got, []v1.UniqueVolumeName{"p/a"}) {
			t.Errorf("in use: %v", got)
		}
	})
}
