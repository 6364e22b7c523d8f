package embedded_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
)

// reason restarts the agent once it has done what there is to do, and returns why
// it has said that a claim is not bound.
func (m *machine) reason(claim string) embedded.Reason {
	m.t.Helper()
	if err := m.Idle(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
	m.stop()
	all, err := embedded.ReadReasons(filepath.Join(m.root, "claims"))
	if err != nil {
		m.t.Fatal(err)
	}
	m.open()
	m.run()
	return all["default/"+claim]
}

// Who shows claims and runs no cluster reads why they are not bound: what classes
// and pods have to do with it, and that it was said by one that has ended.
func TestWhyClaimsAreNotBoundIsWrittenDown(t *testing.T) {
	const topology = "allowedTopologies: [{matchLabelExpressions: [{key: kubernetes.io/hostname, values: [node9]}]}]\n---"
	m := newMachine(t)
	m.run()
	m.mustApply(claimOfDirs)
	for _, step := range []struct {
		name, class string
		pod         bool
		says        string // nothing: that it is bound
	}{
		{"no class", "", false, `storageclass.storage.k8s.io "dirs" not found; create it`},
		{"no pod", dirsClass, false, "create a pod that uses it"},
		{"nobody has changed anything", dirsClass, false, "create a pod that uses it"},
		{"not on this node", strings.Replace(dirsClass, "---", topology, 1), true, "makes volumes only for nodes with kubernetes.io/hostname in (node9)"},
		{"all is well", dirsClass, true, ""},
	} {
		if step.class != "" {
			m.mustApply(step.class)
		}
		if step.pod {
			if err := m.bind(web); (err == nil) != (step.says == "") {
				t.Errorf("%s: bind: %v", step.name, err)
			}
		}
		switch r := m.reason("data"); {
		case step.says == "" && r.Text != "":
			t.Errorf("%s: %+v", step.name, r)
		case step.says != "" && (!strings.Contains(r.Text, step.says) || strings.HasPrefix(r.Text, "bind") || r.UID != m.claim("data").UID || r.Ended == nil || time.Since(r.Since) > time.Hour):
			t.Errorf("%s: %+v", step.name, r)
		}
	}
}

// Why no volume could be made is told also by a process that does not know the claim's class, and
// no longer once it is made.
func TestAFailureIsToldWithoutItsClass(t *testing.T) {
	const missing = `storageclass.storage.k8s.io "dirs" not found`
	m := newMachine(t)
	m.run()
	refused := strings.Replace(dirsClass, "provisioner:", "parameters: {colour: red}\nprovisioner:", 1)
	if err := m.bind(refused + claimOfDirs + web); !errors.Is(err, persistentvolume.ErrNotProvisioned) {
		t.Fatalf("bind: %v", err)
	}
	failed := m.reason("data")
	if failed.Failed == "" || failed.Failed != failed.Text || failed.Ended == nil {
		t.Errorf("reason %+v", failed)
	}
	for range 2 { // also by a later process
		if err := m.bind(claimOfDirs + web); !errors.Is(err, persistentvolume.ErrNoClass) || !strings.Contains(err.Error(), failed.Text) {
			t.Errorf("bind without the class: %v", err)
		}
		if r := m.reason("data"); !strings.Contains(r.Text, missing) || !strings.Contains(r.Text, failed.Text) || r.Failed != failed.Text {
			t.Errorf("without the class: %+v", r)
		}
	}
	m.mustBind(dirsClass + claimOfDirs + web)
	if r := m.reason("data"); r.Text != "" {
		t.Errorf("bound: %+v", r)
	}
}

func TestOnlyClaimsAndVolumesAreDeleted(t *testing.T) {
	m := newMachine(t)
	m.run()
	m.mustBind(dirsClass + claimOfDirs + web)
	refused := m.Delete(t.Context(), volume.ObjectRef{Kind: "Pod", NamespacedName: types.NamespacedName{Namespace: "default", Name: "web"}})
	if !errors.Is(refused, embedded.ErrRefused) || !m.exists("Pod", "web") {
		t.Errorf("err = %v, the pod exists: %t", refused, m.exists("Pod", "web"))
	}
}
