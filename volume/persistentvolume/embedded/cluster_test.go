package embedded_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
)

func TestCloseTwice(t *testing.T) {
	m := newMachine(t)
	m.mustApply(static)
	m.stop()
	if err := m.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the second time: %v", err)
	}
	if m.pv("static").Name != "static" {
		t.Error("it cannot be read")
	}
	if err := m.Apply(t.Context(), objectsOf(t, claimOfStatic)...); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a write after that: %v", err)
	}
	if err := m.Explain(t.Context(), types.NamespacedName{Namespace: "default", Name: "data"}); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("of an unknown claim: %v", err)
	}
	m.open()
}

func TestOpenOnAStoreThatHasClaims(t *testing.T) {
	m := newMachine(t)
	m.mustApply(static)
	m.stop()
	store := objects.NewStore()
	pv := objectsOf(t, static)[0]
	pv.SetResourceVersion("")
	if _, err := store.Create(t.Context(), pv); err != nil {
		t.Fatal(err)
	}
	config := embedded.Config{Dir: filepath.Join(m.root, "claims"), NodeName: "node1", Store: store, Host: volume.Host{RootDir: m.root, Mounter: m.mounter}}
	if _, err := embedded.Open(t.Context(), config); !errors.Is(err, objects.ErrExists) {
		t.Errorf("err = %v", err)
	}
	m.open() // it let go
}
