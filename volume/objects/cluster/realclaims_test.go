package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/apiserver"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// The controller binds and protects what the API's admission leaves to it.
func TestThePersistentVolumeControllerOnARealAPIServer(t *testing.T) {
	apiserver.Run(t, apiserver.Config{}, func(t *testing.T, s *apiserver.Server) {
		const n = 1000
		c := &realCluster{t: t, admin: withNamespaces(t, s)}
		set, _ := as(t, s.Admin(t))
		client := connect(t, set, cluster.Config{Shared: []string{"PersistentVolume", "PersistentVolumeClaim", "StorageClass", "VolumeAttributesClass", "Pod", "Node"}})
		var adders sync.WaitGroup
		for w := range 8 {
			adders.Go(func() {
				for i := w; i < n; i += 8 {
					claim, pv := c.claim(fmt.Sprintf("claim-%04d", i), ""), c.volume(fmt.Sprintf("pv-%04d", i), "")
					pv.Spec.ClaimRef, pv.Spec.PersistentVolumeReclaimPolicy = nil, v1.PersistentVolumeReclaimRetain
					_, made := client.Create(t.Context(), pv)
					_, asked := client.Create(t.Context(), claim)
					if err := errors.Join(made, asked); err != nil {
						t.Error(err)
					}
				}
			})
		}
		adders.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		begun := time.Now()
		go func() {
			ended <- persistentvolume.NewController(persistentvolume.ControllerConfig{Objects: client}).Run(ctx)
		}()
		defer func() {
			cancel()
			if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}()
		for i := range n {
			eventually(t, client, volume.NewObjectRef("PersistentVolumeClaim", "ops", fmt.Sprintf("claim-%04d", i)), func(o metav1.Object, err error) bool {
				claim, ok := o.(*v1.PersistentVolumeClaim)
				return err == nil && ok && claim.Status.Phase == v1.ClaimBound
			})
		}
		t.Logf("%d claims were bound in %s", n, time.Since(begun).Round(time.Millisecond))
		wantPairs(t, client, n)

		first := volume.NewObjectRef("PersistentVolumeClaim", "ops", "claim-0000")
		claim, err := objects.Get[*v1.PersistentVolumeClaim](t.Context(), client.Live(), first)
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Delete(t.Context(), first, objects.Preconditions{UID: claim.UID}); err != nil {
			t.Fatal(err)
		}
		eventually(t, client, first, isMissing)
		eventually(t, client, volume.NewObjectRef("PersistentVolume", "", claim.Spec.VolumeName), func(o metav1.Object, err error) bool {
			pv, ok := o.(*v1.PersistentVolume)
			return err == nil && ok && pv.Status.Phase == v1.VolumeReleased
		})
	})
}

// wantPairs asks the API itself whether every claim has a volume of its own.
func wantPairs(t *testing.T, client *cluster.Client, n int) {
	t.Helper()
	claims, err := objects.List[*v1.PersistentVolumeClaim](t.Context(), client.Live(), "PersistentVolumeClaim", "ops")
	if err != nil {
		t.Fatal(err)
	}
	of := make(map[string]*v1.PersistentVolumeClaim)
	for _, claim := range claims {
		of[claim.Spec.VolumeName] = claim
	}
	pvs, err := objects.List[*v1.PersistentVolume](t.Context(), client.Live(), "PersistentVolume", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, pv := range pvs {
		if claim := of[pv.Name]; claim == nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID {
			t.Errorf("%s is for %v, whose claim is %v", pv.Name, pv.Spec.ClaimRef, claim)
		}
	}
	if len(claims) != n || len(pvs) != n || len(of) != n {
		t.Errorf("%d claims, %d volumes, %d pairs; want %d", len(claims), len(pvs), len(of), n)
	}
}
