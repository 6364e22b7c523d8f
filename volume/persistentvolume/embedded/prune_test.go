package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/persistentvolume/embedded"
)

// prune prunes to what manifests declare.
func (m *machine) prune(text string) {
	m.t.Helper()
	declared := embedded.Declared{NothingIsMeant: true}
	if text != "" {
		set := load(m.t, text)
		declared.StatefulSets, declared.Objects = set.StatefulSets, objectsOf(m.t, text)
	}
	if err := m.Prune(m.t.Context(), declared); err != nil {
		m.t.Fatal(err)
	}
}

func TestPruneDeletesTheClaimAndItsData(t *testing.T) {
	m := newMachine(t)
	m.run()
	m.PodsComplete()
	m.mustBind(dirsClass + claimOfDirs + web)
	m.prune(dirsClass + claimOfDirs + web)
	if len(m.made()) != 1 {
		t.Fatal("what is declared was deleted")
	}
	m.prune(dirsClass + web)
	if claim := m.claim("data"); claim.DeletionTimestamp == nil {
		t.Fatalf("it is %v", claim)
	}
	// Protected as long as a pod uses it.
	if err := m.PodGone(t.Context(), load(t, web).Pods()[0].UID); err != nil {
		t.Fatal(err)
	}
	m.eventually("all is gone", func() bool {
		return !m.exists("PersistentVolumeClaim", "data") && len(m.made()) == 0
	})
	m.prune("")
	if m.exists("StorageClass", "dirs") || !m.exists("Node", "node1") {
		t.Error("the class is there, or the node is not")
	}
}

func TestPruneLeavesWhatItMustNotTake(t *testing.T) {
	m := newMachine(t)
	m.run()
	m.PodsComplete()
	m.mustBind(static + claimOfStatic + web)
	m.mustApply(strings.Replace(static, "name: static", "name: free", 1))
	found := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "discovered"}, Spec: *m.pv("free").Spec.DeepCopy()}
	if _, err := m.Objects().Create(t.Context(), found); err != nil {
		t.Fatal(err)
	}
	m.prune(claimOfStatic + web)
	m.eventually("the free volume is gone", func() bool { return !m.exists("PersistentVolume", "free") })
	if !m.exists("PersistentVolume", "discovered") || m.pv("static").DeletionTimestamp != nil || m.claim("data").DeletionTimestamp != nil || !m.exists("Pod", "web") {
		t.Error("too much was deleted")
	}
	// What has held data for a claim stays with it, though nobody declares either.
	m.prune("")
	if err := m.PodGone(t.Context(), load(t, web).Pods()[0].UID); err != nil {
		t.Fatal(err)
	}
	m.eventually("the claim is gone", func() bool {
		return !m.exists("PersistentVolumeClaim", "data") && m.pv("static").Status.Phase == v1.VolumeReleased
	})
	m.prune("")
	m.mustBind(static + claimOfStatic + web)
	if got := m.claim("data").Spec.VolumeName; got != "discovered" {
		t.Errorf("another claim has the volume %q, where the first one has stored its data", got)
	}
}

// What another program has applied is not this one's to delete.
func TestPruneIsForOnesOwn(t *testing.T) {
	m := newMachine(t)
	m.mustApply(claimOfStatic)
	m.stop()
	other, err := embedded.Open(t.Context(), embedded.Config{Dir: filepath.Join(m.root, "claims"), NodeName: "node1", Manager: "other"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Prune(t.Context(), embedded.Declared{NothingIsMeant: true}); err != nil {
		t.Fatal(err)
	}
	m.Cluster = other
	if !m.exists("PersistentVolumeClaim", "data") {
		t.Fatal("the other's claim was deleted")
	}
	// Who applies it last has it.
	m.mustApply(claimOfStatic)
	if err := other.Prune(t.Context(), embedded.Declared{NothingIsMeant: true}); err != nil || m.exists("PersistentVolumeClaim", "data") {
		t.Errorf("the claim is there: %v", err)
	}
}

func TestClaimsOfStatefulSetsGoAsTheySay(t *testing.T) {
	const set = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 2
  selector: {matchLabels: {a: b}}
  POLICY
  template:
    metadata: {labels: {a: b}}
    spec: {containers: [{name: c, image: i}]}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {storageClassName: "", accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---`
	for policy, want := range map[string]struct{ scaled, deleted bool }{
		"": {true, true},
		"persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete}":                     {true, false},
		"persistentVolumeClaimRetentionPolicy: {whenScaled: Delete}":                      {false, true},
		"persistentVolumeClaimRetentionPolicy: {whenScaled: Delete, whenDeleted: Delete}": {false, false},
	} {
		t.Run(policy, func(t *testing.T) {
			m := newMachine(t)
			declared := strings.Replace(set, "POLICY", policy, 1)
			m.mustApply(declared)
			m.prune(strings.Replace(declared, "replicas: 2", "replicas: 1", 1))
			if got := m.exists("PersistentVolumeClaim", "data-db-1"); got != want.scaled || !m.exists("PersistentVolumeClaim", "data-db-0") {
				t.Errorf("after scaling down it exists: %t", got)
			}
			m.prune("")
			if got := m.exists("PersistentVolumeClaim", "data-db-0"); got != want.deleted {
				t.Errorf("after the set was deleted it exists: %t", got)
			}
		})
	}
}

// Before all pods are known nothing goes, and nothing that is mounted ever, be its
// pod declared or not.
func TestNothingIsDeletedUnderAPod(t *testing.T) {
	m := newMachine(t)
	m.run()
	m.mustBind(dirsClass + claimOfDirs + web)
	pod := load(t, web).Pods()[0]
	volumeName := m.claim("data").Spec.VolumeName
	m.setMounted([]embedded.Mounted{{
		Pod: types.NamespacedName{Namespace: "default", Name: "web"}, PodUID: pod.UID, Volume: volumeName,
		Claim: types.NamespacedName{Namespace: "default", Name: "data"},
	}})
	m.delete("PersistentVolumeClaim", "data")
	m.restart() // and nobody declares the pod
	m.run()
	m.mustApply(dirsClass)
	m.settle()
	if !m.exists("PersistentVolumeClaim", "data") {
		t.Fatal("the claim went before the pods were complete")
	}
	m.PodsComplete()
	m.settle()
	if !m.exists("PersistentVolumeClaim", "data") || podNode(t, m, "web") != "node1" {
		t.Fatal("the claim of a mounted pod went")
	}
	// The claim goes, but its volume is still mounted.
	if err := m.PodGone(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
	m.eventually("the volume is released", func() bool {
		return m.pv(volumeName).Status.Phase == v1.VolumeReleased && m.pv(volumeName).Status.Message != ""
	})
	if text := m.pv(volumeName).Status.Message; len(m.made()) != 1 || !strings.Contains(text, `is still used by Pod default/web (UID `+string(pod.UID)+`, it is mounted)`) {
		t.Fatalf("made %v, message %q", m.made(), text)
	}
	m.setMounted(nil)
	m.eventually("the volume is gone", func() bool { return !m.exists("PersistentVolume", volumeName) })
	if len(m.made()) != 0 {
		t.Errorf("its directory stays: %v", m.made())
	}
}

// settle waits until the controller has done what there is to do.
func (m *machine) settle() {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), 2*time.Minute)
	defer cancel()
	if err := m.Idle(ctx); err != nil {
		m.t.Fatal(err)
	}
}

// A wait is told while it lasts, with who has the claims.
func TestOpenSaysForWhomItWaits(t *testing.T) {
	m := newMachine(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var told lineThen
	told.then = cancel
	_, err := embedded.Open(ctx, embedded.Config{Dir: filepath.Join(m.root, "claims"), NodeName: "node1", LockTimeout: time.Hour, Logger: slog.New(slog.NewTextHandler(&told, nil))})
	if !errors.Is(err, context.Canceled) || !strings.Contains(told.line, "waiting for the claims") || !strings.Contains(told.line, fmt.Sprintf("process %d (", os.Getpid())) {
		t.Errorf("it says %q, and err = %v", told.line, err)
	}
}

// lineThen keeps what is written, and then calls a function.
type lineThen struct {
	line string
	then func()
}

func (w *lineThen) Write(p []byte) (int, error) {
	w.line += string(p)
	w.then()
	return len(p), nil
}

func TestOpenSaysWhoHasTheClaims(t *testing.T) {
	m := newMachine(t)
	_, err := embedded.Open(t.Context(), embedded.Config{Dir: filepath.Join(m.root, "claims"), NodeName: "node1", LockTimeout: 10 * time.Millisecond})
	if !errors.Is(err, embedded.ErrBusy) || !strings.Contains(err.Error(), fmt.Sprintf(" in use by process %d (", os.Getpid())) {
		t.Errorf("err = %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = embedded.Open(ended, embedded.Config{Dir: filepath.Join(m.root, "claims"), NodeName: "node1"}); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	if _, err = embedded.Open(t.Context(), embedded.Config{Dir: filepath.Join(m.root, "other")}); err == nil {
		t.Error("no node name, and no error")
	}
}

// An empty scan is more often a disk that is not mounted than a wish.
func TestPruneDeletesNothingWhereNothingIsDeclared(t *testing.T) {
	m := newMachine(t)
	m.run()
	m.PodsComplete()
	if err := m.Prune(t.Context(), embedded.Declared{}); err != nil {
		t.Fatalf("there is nothing to keep: %v", err)
	}
	m.mustApply(static + dirsClass + claimOfDirs)
	err := m.Prune(t.Context(), embedded.Declared{})
	if !errors.Is(err, embedded.ErrNothingDeclared) || !strings.Contains(err.Error(), ": PersistentVolume static, PersistentVolumeClaim default/data; ") {
		t.Fatalf("err = %v", err)
	}
	if !m.exists("PersistentVolumeClaim", "data") || !m.exists("PersistentVolume", "static") || !m.exists("StorageClass", "dirs") {
		t.Error("something was deleted")
	}
	m.prune("")
	m.eventually("all is gone", func() bool {
		return !m.exists("PersistentVolumeClaim", "data") && !m.exists("PersistentVolume", "static")
	})
}
