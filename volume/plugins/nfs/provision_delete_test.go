package nfs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

var errStillUsed = errors.New("a pod uses it")

// releases lets data be destroyed until it was asked as often as it says.
type releases struct {
	asked, yes atomic.Int32
}

func (r *releases) VerifyReleased(context.Context, *v1.PersistentVolume) error {
	if r.asked.Add(1) > r.yes.Load() {
		return errStillUsed
	}
	return nil
}

// Data goes only where somebody knows that nobody needs it, still when the share
// is mounted.
func TestDeleteAsksWhetherDataIsReleased(t *testing.T) {
	p, h := newPlugin(t)
	share := shareOf(t, h)
	pv := mustProvision(t, p, wishes("data"))
	if err := os.WriteFile(filepath.Join(share, "pvc-data/precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const all = "pvc-data pvc-data/precious"
	h.Releases = nil
	if err := deletePV(p, pv); !errors.As(err, new(*volume.MissingRoleError)) || !strings.Contains(err.Error(), "release.Verifier") || shown(t, share) != all {
		t.Errorf("nobody knows: %v, left %s", err, shown(t, share))
	}
	for yes := range int32(2) {
		asked := &releases{}
		asked.yes.Store(yes)
		h.Releases = asked
		if err := deletePV(p, pv); !errors.Is(err, errStillUsed) || asked.asked.Load() != yes+1 || shown(t, share) != all {
			t.Errorf("refused when asked again after %d: %v, asked %d times, left %s", yes, err, asked.asked.Load(), shown(t, share))
		}
	}
	h.Releases = &releases{}
	h.Releases.(*releases).yes.Store(2)
	// The verifier has not heard of the pod yet.
	m, err := p.NewMounter(volume.NewSpecFromPersistentVolume(pv, false), pod("u1"))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.SetUp(t.Context(), volume.MounterArgs{}); err != nil {
		t.Fatal(err)
	}
	if err := deletePV(p, pv); !errors.Is(err, volume.ErrInUse) || shown(t, share) != all {
		t.Errorf("mounted here: %v, left %s", err, shown(t, share))
	}
	u, err := p.NewUnmounter(pv.Name, "u1")
	if err != nil {
		t.Fatal(err)
	}
	if err := u.TearDown(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.Releases.(*releases).yes.Store(5)
	if err := deletePV(p, pv); err != nil || shown(t, share) != "" {
		t.Errorf("released: %v, left %s", err, shown(t, share))
	}
}

// What is to be retained is not deleted, whoever asks for it.
func TestDeleteObeysTheReclaimPolicy(t *testing.T) {
	p, h := newPlugin(t)
	share := shareOf(t, h)
	for _, policy := range []v1.PersistentVolumeReclaimPolicy{v1.PersistentVolumeReclaimRetain, v1.PersistentVolumeReclaimRecycle, ""} {
		pv := mustProvision(t, p, wishes("data"))
		pv.Spec.PersistentVolumeReclaimPolicy = policy
		pv.Status.Phase = v1.VolumeBound
		if err := deletePV(p, pv); !errors.As(err, new(*volume.InvalidSpecError)) || shown(t, share) != "pvc-data" {
			t.Errorf("policy %q: %v, left %s", policy, err, shown(t, share))
		}
	}
}

// A server that lacks its disk says nothing about what was on it.
func TestDeleteWhereTheDiskIsNotMounted(t *testing.T) {
	p, h := newPlugin(t)
	shareOf(t, h)
	pv := mustProvision(t, p, wishes("data"))
	shareOf(t, h) // another directory
	none, ok := errors.AsType[*nfs.ShareError](deletePV(p, pv))
	if !ok || none.Cause != nfs.ErrNoBook || none.Owner.Volume != pv.Name || !strings.Contains(none.Error(), "mounted on the server") {
		t.Errorf("%v", none)
	}
	pv.Annotations[nfs.OnDeleteAnnotation] = "retain"
	if err := deletePV(p, pv); err != nil {
		t.Errorf("to be retained: %v", err)
	}
}

// Who reads an error knows the share, and not where it was mounted for a moment;
// and what helps who makes a volume does not help who deletes one.
func TestErrorsNameTheShare(t *testing.T) {
	p, h := newPlugin(t)
	share := shareOf(t, h)
	pv := mustProvision(t, p, wishes("data", parameter("subDir", "ns/data")))
	if err := errors.Join(os.Mkdir(filepath.Join(share, "foreign"), 0o755), os.Symlink("foreign", filepath.Join(share, "link"))); err != nil {
		t.Fatal(err)
	}
	leadingTo := func(path string) *v1.PersistentVolume {
		other := pv.DeepCopy()
		other.Spec.NFS.Path = path
		return other
	}
	later := pv.DeepCopy()
	later.Spec.ClaimRef.UID = "later"
	_, foreign := provision(p, wishes("a", parameter("subDir", "foreign")))
	_, nested := provision(p, wishes("b", parameter("subDir", "ns/data/deeper")))
	for name, tc := range map[string]struct {
		err      error
		path     string
		deleting bool
	}{
		"made in a foreign directory":  {foreign, "10.0.0.1:/export/foreign ", false},
		"made in another volume":       {nested, "10.0.0.1:/export/ns/data/deeper ", false},
		"deleting a foreign directory": {deletePV(p, leadingTo("/export/foreign")), "10.0.0.1:/export/foreign,", true},
		"deleting a link":              {deletePV(p, leadingTo("/export/link")), "10.0.0.1:/export/link,", true},
		"deleting what holds others":   {deletePV(p, leadingTo("/export/ns")), "10.0.0.1:/export/ns,", true},
		"deleting another claim's":     {deletePV(p, later), "10.0.0.1:/export/ns/data,", true},
	} {
		if tc.err == nil || strings.Contains(tc.err.Error(), h.RootDir) || !strings.Contains(tc.err.Error(), tc.path) ||
			strings.Contains(tc.err.Error(), "template") == tc.deleting || strings.Contains(tc.err.Error(), "nfs.path") != tc.deleting {
			t.Errorf("%s: %v", name, tc.err)
		}
	}
	if got := shown(t, share); got != "foreign link ns ns/data" {
		t.Errorf("left %s", got)
	}
}

// inUseBy is what a verifier says of a volume whose path another one shows.
type inUseBy struct{}

func (inUseBy) VerifyReleased(context.Context, *v1.PersistentVolume) error {
	return fmt.Errorf("another PersistentVolume shows the same data: %w", volume.ErrInUse)
}

// Two volumes of one path, of which the first was deleted when the process was
// killed, do not wait for each other.
func TestAVolumeWhosePathIsAnothersByNowGoes(t *testing.T) {
	p, h := newPlugin(t)
	share := shareOf(t, h)
	named := parameter("subDir", "${pvc.metadata.name}")
	first := mustProvision(t, p, wishes("data", named))
	h.Releases = inUseBy{}
	if err := deletePV(p, first); !errors.Is(err, volume.ErrInUse) || shown(t, share) != "data" {
		t.Errorf("while it is there: %v, left %s", err, shown(t, share))
	}
	allowed := &releases{}
	allowed.yes.Store(2)
	h.Releases = allowed
	if err := deletePV(p, first); err != nil || shown(t, share) != "" {
		t.Fatalf("%v, left %s", err, shown(t, share))
	}
	second := mustProvision(t, p, wishes("data", named, func(o *volume.VolumeOptions) { o.PVName, o.PVC.UID = "pvc-later", "later" }))
	if err := os.WriteFile(filepath.Join(share, "data/precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.Releases = inUseBy{} // by each other
	if err := deletePV(p, first); err != nil || shown(t, share) != "data data/precious" {
		t.Errorf("the first: %v, left %s", err, shown(t, share))
	}
	if err := deletePV(p, second); !errors.Is(err, volume.ErrInUse) || shown(t, share) != "data data/precious" {
		t.Errorf("the second, before the first is gone: %v, left %s", err, shown(t, share))
	}
}
