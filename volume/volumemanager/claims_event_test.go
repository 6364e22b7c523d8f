package volumemanager_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/volumemanager"
)

// noClaims is read by one who may not get claims.
type noClaims struct{ objects.Source }

func (s noClaims) Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error) {
	if ref.Kind == "PersistentVolumeClaim" {
		return nil, errors.New("claims are forbidden to this node")
	}
	return s.Source.Get(ctx, ref)
}

// While nobody knows the volume of a claim, events call it as the pod does.
func TestEventsNameVolumesOfUnresolvedClaims(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1.PersistentVolumeClaim)
		source func(objects.Source) objects.Source
		event  string // its beginning; "": there is none
		says   string
	}{
		"missing": {change: func(c *v1.PersistentVolumeClaim) { c.Name = "other" },
			event: `web Warning FailedMount MountVolume.SetUp failed for volume "vol1" : `, says: "PersistentVolumeClaim ops-test/nfs-211"},
		"pending": {change: func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "" }}, // is waited for, and no failure
		"without a volume": {change: func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "gone" },
			event: `web Warning FailedMount MountVolume.SetUp failed for volume "vol1" : `, says: "PersistentVolume gone"},
		"forbidden": {source: func(s objects.Source) objects.Source { return noClaims{s} },
			event: `web Warning FailedMount MountVolume.SetUp failed for volume "vol1" : `, says: "forbidden to this node"},
	} {
		t.Run(name, func(t *testing.T) {
			// In real time it is tried again meanwhile, and fails again.
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				claim, pv := boundPair("nfs-211", "nfs211")
				if tc.change != nil {
					tc.change(claim)
				}
				w.add(claim, pv)
				config := w.config()
				if tc.source != nil {
					config.Objects = tc.source(w.store)
				}
				manager, err := volumemanager.New(config)
				if err != nil {
					t.Fatal(err)
				}
				w.run(manager)
				if _, err := manager.SetUpPod(t.Context(), newPod("web", claimVolume("vol1", "nfs-211", false))); err == nil {
					t.Fatal("there is no such volume, and no error")
				}
				switch got := w.events.all(); {
				case tc.event == "" && len(got) == 0:
				case tc.event == "" || len(got) != 1 || !strings.HasPrefix(got[0], tc.event) || !strings.Contains(got[0], tc.says):
					t.Errorf("events %q, want one that begins %q and says %q", got, tc.event, tc.says)
				}
			})
		})
	}
}
