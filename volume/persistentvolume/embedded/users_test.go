package embedded_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
)

// use has somebody else use what a pod has.
func (m *machine) use(manifests string) *embedded.User {
	m.t.Helper()
	user, err := m.Use(m.t.Context(), "podvol run (process 4711)", load(m.t, manifests).Pods()...)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		if err := user.Release(); err != nil {
			m.t.Error(err)
		}
	})
	return user
}

func refOf(kind, name string) volume.ObjectRef {
	namespace := "default"
	if kind == "PersistentVolume" {
		namespace = ""
	}
	return volume.NewObjectRef(kind, namespace, name)
}

func (m *machine) userFiles() []string {
	m.t.Helper()
	names, err := filepath.Glob(filepath.Join(m.root, "claims", "users", "*"))
	if err != nil {
		m.t.Fatal(err)
	}
	return names
}

const onlyOnce = "ReadWriteOncePod"

// Whoever uses a claim is asked by those who come later: its data stays, until
// the user ends.
func TestWhatAProcessUsesIsNotReclaimed(t *testing.T) {
	m := newMachine(t)
	m.run()
	m.mustBind(dirsClass + claimOfDirs + web)
	user := m.use(web)
	m.restart()
	m.run()
	m.PodsComplete()
	ref := refOf("PersistentVolumeClaim", "data")
	err := m.Delete(t.Context(), ref)
	if !errors.Is(err, embedded.ErrInUse) || !strings.Contains(err.Error(), "is in use by podvol run (process 4711) of pod default/web: end that first") {
		t.Fatalf("err = %v", err)
	}
	read, err := embedded.ReadUsers(filepath.Join(m.root, "claims"))
	if err != nil || len(read) != 1 || read[0].By != "podvol run (process 4711)" || read[0].Pod.Name != "web" || read[0].Claim.Name != "data" {
		t.Errorf("read %v, %v", read, err)
	}
	// Who declares the claim no more deletes it, but the use keeps it.
	if err := m.Prune(t.Context(), embedded.Declared{Objects: objectsOf(t, dirsClass)}); err != nil {
		t.Fatal(err)
	}
	if err := m.Idle(t.Context()); err != nil || m.claim("data").DeletionTimestamp == nil || len(m.made()) != 1 {
		t.Fatalf("claim %v, made %v, err = %v", m.claim("data"), m.made(), err)
	}
	if err := user.Release(); err != nil {
		t.Fatal(err)
	}
	m.eventually("claim and volume are gone", func() bool {
		return !m.exists("PersistentVolumeClaim", "data") && len(m.made()) == 0
	})
	if left := m.userFiles(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A volume whose claim is gone already is kept, too.
func TestAReleasedVolumeThatIsUsedStays(t *testing.T) {
	m := newMachine(t)
	m.run()
	m.mustBind(dirsClass + claimOfDirs + web)
	m.use(web)
	m.restart()
	claim := m.claim("data").DeepCopy()
	claim.Finalizers = nil
	if _, err := m.Objects().Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	m.delete("PersistentVolumeClaim", "data")
	err := m.Delete(t.Context(), refOf("PersistentVolume", claim.Spec.VolumeName))
	if !errors.Is(err, embedded.ErrInUse) || !strings.Contains(err.Error(), "is in use by podvol run") {
		t.Errorf("err = %v", err)
	}
}

// A claim for one pod alone is for one user alone, be it for the same pod.
func TestAReadWriteOncePodClaimHasOneUser(t *testing.T) {
	m := newMachine(t)
	m.run()
	manifests := dirsClass + strings.Replace(claimOfDirs, "ReadWriteOnce", onlyOnce, 1) + web
	m.mustBind(manifests)
	user := m.use(web)
	if second, err := m.Use(t.Context(), "podvol run (process 4712)", load(t, web).Pods()...); !errors.Is(err, persistentvolume.ErrUsedByOtherPod) {
		t.Fatalf("%v, %v", second, err)
	}
	m.restart()
	m.run()
	for _, pod := range []string{web, strings.Replace(web, "name: web", "name: other", 1)} {
		err := m.bind(dirsClass + strings.Replace(claimOfDirs, "ReadWriteOnce", onlyOnce, 1) + pod)
		if !errors.Is(err, persistentvolume.ErrUsedByOtherPod) || !strings.Contains(err.Error(), "in use by podvol run (process 4711) of pod default/web") {
			t.Fatalf("err = %v", err)
		}
	}
	if err := user.Release(); err != nil {
		t.Fatal(err)
	}
	m.eventually("the use is over", func() bool { return len(m.userFiles()) == 0 && m.Bind(t.Context(), load(t, web).Pods()...) == nil })
	// What the node has mounted for the pod is a use as well.
	pod := load(t, web).Pods()[0]
	m.setMounted([]embedded.Mounted{{Pod: refOf("Pod", "web").NamespacedName, PodUID: pod.UID, Claim: refOf("PersistentVolumeClaim", "data").NamespacedName, Volume: m.claim("data").Spec.VolumeName}})
	if _, err := m.Use(t.Context(), "podvol run (process 4713)", pod); !errors.Is(err, persistentvolume.ErrUsedByOtherPod) {
		t.Errorf("err = %v", err)
	}
}

// What a process has left that was killed is recognised, and holds nothing.
func TestADeadUserUsesNothing(t *testing.T) {
	m := newMachine(t)
	m.run()
	m.mustBind(dirsClass + claimOfDirs + web)
	m.use(web)
	files := m.userFiles()
	if len(files) != 1 {
		t.Fatal(files)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(files[0])
	for _, name := range []string{"dead.json", ".new-dead"} { // locked by nobody
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m.restart()
	if left := m.userFiles(); !slices.Equal(left, files) {
		t.Errorf("left: %v", left)
	}
	if read, err := embedded.ReadUsers(filepath.Join(m.root, "claims")); err != nil || len(read) != 1 {
		t.Errorf("%v, %v", read, err)
	}
	// One that lives and cannot be understood is not taken for nobody.
	if err := os.WriteFile(files[0], []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if c, err := embedded.Open(ctx, embedded.Config{Dir: filepath.Join(m.root, "claims"), NodeName: "node1"}); err == nil || !strings.Contains(err.Error(), "end that process") {
		t.Errorf("%v, %v", c, err)
	}
}
