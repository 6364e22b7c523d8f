package embedded_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
)

// written has a volume made and bound, writes a file into it, and loses all
// records. It returns the claim and volume as they were, and the file.
func (m *machine) written() (*v1.PersistentVolumeClaim, *v1.PersistentVolume, string) {
	m.t.Helper()
	m.mustApply(strings.Replace(dirsClass, "WaitForFirstConsumer", "Immediate", 1))
	m.run()
	m.PodsComplete()
	m.mustApply(claimOfDirs)
	m.eventually("bound", func() bool { return m.claim("data").Status.Phase == v1.ClaimBound })
	claim := m.claim("data")
	pv := m.pv(claim.Spec.VolumeName)
	file := filepath.Join(pv.Spec.HostPath.Path, "precious")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		m.t.Fatal(err)
	}
	m.stop()
	if err := os.RemoveAll(filepath.Join(m.root, "claims")); err != nil {
		m.t.Fatal(err)
	}
	m.open()
	m.run()
	m.PodsComplete()
	return claim, pv, file
}

func (m *machine) assertKept(file string) {
	m.t.Helper()
	if err := m.Idle(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
	if _, err := os.Stat(file); err != nil {
		m.t.Fatalf("the data is gone: %v", err)
	}
}

// A volume and its claim come from a backup: the volume keeps its data, is the
// claim's again, and goes with it from then on.
func TestAVolumeThatIsRestoredKeepsItsDataForItsClaim(t *testing.T) {
	for name, forge := range map[string]func(*v1.PersistentVolume){
		"as printed": func(*v1.PersistentVolume) {},
		"its annotation forged": func(pv *v1.PersistentVolume) {
			pv.Annotations[pvapi.AwaitsClaimAnnotation] = "another"
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			claim, pv, file := m.written()
			pv = pv.DeepCopy() // what was read is the store's too
			forge(pv)
			for range 2 { // alone, and again with nothing in its manifest of what is noted in it
				if err := m.Apply(t.Context(), metav1.Object(pv)); err != nil {
					t.Fatal(err)
				}
				m.eventually("seen", func() bool { return m.pv(pv.Name).Status.Phase != "" })
				m.assertKept(file)
			}
			m.mustApply(strings.Replace(claimOfDirs, "name: data", "name: other", 1)) // which does not get it
			if err := m.Apply(t.Context(), metav1.Object(claim)); err != nil {
				t.Fatal(err)
			}
			m.eventually("bound to it again", func() bool {
				now := m.claim("data")
				return now.Status.Phase == v1.ClaimBound && now.Spec.VolumeName == pv.Name && m.pv(pv.Name).Status.Phase == v1.VolumeBound
			})
			m.eventually("its own", func() bool {
				_, awaits := m.pv(pv.Name).Annotations[pvapi.AwaitsClaimAnnotation]
				return !awaits
			})
			m.assertKept(file)
			m.delete("PersistentVolumeClaim", "data")
			m.eventually("reclaimed with its claim", func() bool { return !m.exists("PersistentVolume", pv.Name) })
			if _, err := os.Stat(file); err == nil {
				t.Error("its data stays")
			}
		})
	}
}

// What was nobody's gets a claim's UID by a manifest, or what a claim had that has
// another volume now is declared again: neither is data that was let go of.
func TestNoManifestOfAVolumeDeletesItsData(t *testing.T) {
	t.Run("by a change", func(t *testing.T) {
		m := newMachine(t)
		_, pv, file := m.written()
		free := pv.DeepCopy()
		free.Spec.ClaimRef = nil
		free.Spec.StorageClassName = "nobodys"
		if err := m.Apply(t.Context(), metav1.Object(free)); err != nil {
			t.Fatal(err)
		}
		if err := m.Apply(t.Context(), metav1.Object(pv)); err != nil {
			t.Fatal(err)
		}
		m.assertKept(file)
	})
	t.Run("of a claim that has another", func(t *testing.T) {
		m := newMachine(t)
		claim, pv, file := m.written()
		again := claim.DeepCopy()
		again.Spec.VolumeName = ""
		m.mustApply(strings.Replace(dirsClass, "WaitForFirstConsumer", "Immediate", 1))
		if err := m.Apply(t.Context(), metav1.Object(again)); err != nil {
			t.Fatal(err)
		}
		m.eventually("bound to another", func() bool { return m.claim("data").Status.Phase == v1.ClaimBound })
		renamed := pv.DeepCopy()
		renamed.Name = "of-the-backup"
		if err := m.Apply(t.Context(), metav1.Object(renamed)); err != nil {
			t.Fatal(err)
		}
		m.eventually("seen", func() bool { return m.pv("of-the-backup").Status.Phase != "" })
		m.assertKept(file)
		if err := m.Prune(t.Context(), embedded.Declared{NothingIsMeant: true}); err != nil {
			t.Fatal(err)
		}
	})
}
