package embedded_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/plugins/hostpath"
)

// withUID is the claim with a UID in its manifest, as a cluster prints it.
var withUID = strings.Replace(claimOfDirs, "name: data", "name: data, uid: from-elsewhere", 1)

func write(t *testing.T, file string) {
	t.Helper()
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// shares has the machine make its volumes in another one's directory.
func (m *machine) shares(other *machine) {
	m.t.Helper()
	m.plugins = []volume.VolumePlugin{hostpath.New(hostpath.Config{Provision: hostpath.ProvisionConfig{Bases: []hostpath.Base{{Path: other.base()}}}})}
	m.restart()
}

// Both make their volumes in one directory, as on a share: neither sees, or
// deletes, the data of the other.
func TestStoresThatDeclareOneManifestShareNoData(t *testing.T) {
	immediate := strings.Replace(dirsClass, "WaitForFirstConsumer", "Immediate", 1)
	machines := []*machine{newMachine(t), newMachine(t)}
	machines[1].shares(machines[0])
	for _, m := range machines {
		m.mustApply(immediate + withUID)
		m.run()
		m.PodsComplete()
		m.eventually("bound", func() bool { return m.claim("data").Status.Phase == v1.ClaimBound })
		write(t, filepath.Join(m.pv(m.claim("data").Spec.VolumeName).Spec.HostPath.Path, "precious"))
	}
	if made := machines[0].made(); len(made) != 2 {
		t.Fatalf("the two claims have %v", made)
	}
	name := []string{machines[0].claim("data").Spec.VolumeName, machines[1].claim("data").Spec.VolumeName}
	machines[0].delete("PersistentVolumeClaim", "data")
	machines[0].eventually("reclaimed", func() bool { return !machines[0].exists("PersistentVolume", name[0]) })
	if made := machines[0].made(); len(made) != 1 || filepath.Base(made[0]) != name[1] {
		t.Fatalf("left are %v, want %s", made, name[1])
	}
	machines[1].assertKept(filepath.Join(machines[0].base(), name[1], "precious"))
}

// A manifest that has a UID is applied again and again, and says nothing of the UID
// here. Another one in it is another claim.
func TestTheUIDOfAManifestIsOnlyNoted(t *testing.T) {
	m := newMachine(t)
	m.mustApply(withUID)
	first := m.claim("data")
	m.restart()
	m.mustApply(withUID)
	if again := m.claim("data"); again.UID != first.UID || again.Annotations["podvol.io/last-applied-configuration"] != first.Annotations["podvol.io/last-applied-configuration"] {
		t.Errorf("it was %v, and is %v", first.ObjectMeta, again.ObjectMeta)
	}
	m.mustApply(strings.Replace(withUID, "from-elsewhere", string(first.UID), 1)) // as printed here
	if err := m.Apply(t.Context(), objectsOf(t, strings.Replace(withUID, "from-elsewhere", "another", 1))...); !errors.Is(err, embedded.ErrImmutable) {
		t.Errorf("err = %v", err)
	}
	m.mustApply(claimOfDirs)
	if again := m.claim("data"); again.UID != first.UID {
		t.Errorf("the UID was %s, and is %s", first.UID, again.UID)
	}
}

// Earlier releases gave a claim the UID of its manifest, and noted nothing of it.
func TestAClaimThatHasTheUIDOfItsManifestKeepsIt(t *testing.T) {
	m := newMachine(t)
	recorded := objectsOf(t, withUID)[0].(*v1.PersistentVolumeClaim)
	recorded.ResourceVersion = ""
	recorded.Annotations = map[string]string{
		"podvol.io/applied-by":                 "podvol",
		"podvol.io/last-applied-configuration": `{"claim":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}},"storageClassName":"dirs"}}`,
	}
	if _, err := m.Objects().Create(t.Context(), recorded); err != nil {
		t.Fatal(err)
	}
	m.restart()
	for _, text := range []string{withUID, claimOfDirs, withUID} {
		m.mustApply(text)
		if got := m.claim("data").UID; got != "from-elsewhere" {
			t.Errorf("its UID is %q", got)
		}
	}
	m.run()
	m.PodsComplete()
	m.delete("PersistentVolumeClaim", "data")
	m.eventually("gone", func() bool { return !m.exists("PersistentVolumeClaim", "data") })
	m.mustApply(withUID)
	if got := m.claim("data").UID; got == "from-elsewhere" {
		t.Error("the next claim is the same one")
	}
}

// Claim and volume come from a backup, the claim first: one file of several.
func TestAClaimGetsItsUIDOnceItsRestoredVolumeComes(t *testing.T) {
	m := newMachine(t)
	claim, pv, file := m.written()
	if err := m.Apply(t.Context(), metav1.Object(claim)); err != nil {
		t.Fatal(err)
	}
	if got := m.claim("data").UID; got == claim.UID {
		t.Errorf("it has UID %s without its volume", got)
	}
	err := m.Apply(t.Context(), metav1.Object(claim), metav1.Object(pv))
	if err != nil && !errors.Is(err, embedded.ErrBeingDeleted) {
		t.Fatal(err)
	}
	m.eventually("bound", func() bool {
		now, err := objects.Get[*v1.PersistentVolumeClaim](t.Context(), m.Objects(), volume.NewObjectRef("PersistentVolumeClaim", "default", "data"))
		return err == nil && now.UID == claim.UID && now.Status.Phase == v1.ClaimBound && now.Spec.VolumeName == pv.Name
	})
	m.assertKept(file)
}

// What a claim has, it keeps, whichever volume comes with the UID of its manifest.
func TestAClaimThatHasAVolumeIsNotReplaced(t *testing.T) {
	m := newMachine(t)
	m.mustApply(strings.Replace(dirsClass, "WaitForFirstConsumer", "Immediate", 1) + withUID)
	m.run()
	m.eventually("bound", func() bool { return m.claim("data").Status.Phase == v1.ClaimBound })
	first := m.claim("data")
	m.mustApply(strings.Replace(static, "spec: {", "spec: {claimRef: {namespace: default, name: data, uid: from-elsewhere}, ", 1) + withUID)
	if now := m.claim("data"); now.UID != first.UID || now.Spec.VolumeName != first.Spec.VolumeName || now.DeletionTimestamp != nil {
		t.Errorf("it is %v", now)
	}
}
