package podfiles_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/podfiles"
)

// withoutPods is a source that cannot read pods while it is told so.
type withoutPods struct {
	*objects.Store
	broken atomic.Bool
}

func (s *withoutPods) Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error) {
	if ref.Kind == "Pod" && s.broken.Load() {
		return nil, errors.New("the server does not answer")
	}
	return s.Store.Get(ctx, ref)
}

// Labels that were read once stay while the pod cannot be read, and once it is gone; those
// that the caller gave do not come back. What has changed meanwhile is told afterwards.
func TestFollowNeverGoesBackToOlderLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		labels := projectedVolume(
			v1.VolumeProjection{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{
				{Path: "app", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels['app']"}}}}},
			v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "app"}}})
		pod := podWith(labels)
		stored := pod.DeepCopy()
		config := &v1.ConfigMap{ObjectMeta: meta("app"), Data: map[string]string{"a": "1"}}
		source := &withoutPods{Store: storeOf(t, stored, config)}
		told, stop := follow(t, pod, podfiles.WatchSources{Objects: source})
		defer stop()
		told.want(t, "at first", `v: a 0644 "1", app 0644 "web"`)
		stored.Labels = map[string]string{"app": "shop"}
		update(t, source.Store, stored)
		told.want(t, "after a change", `v: a 0644 "1", app 0644 "shop"`)

		source.broken.Store(true)
		config.Data = map[string]string{"a": "2"}
		update(t, source.Store, config)
		stored.Labels = map[string]string{"app": "third"}
		update(t, source.Store, stored)
		synctest.Wait()
		if got := told.take(); len(got) == 0 || slices.ContainsFunc(got, func(s string) bool { return !strings.Contains(s, "does not answer") }) {
			t.Errorf("while the pod cannot be read: %q", got)
		}
		source.broken.Store(false)
		time.Sleep(time.Minute)
		told.want(t, "when it can be read again", `v: a 0644 "2", app 0644 "third"`)

		if err := source.Delete(t.Context(), volume.NewObjectRef("Pod", "shop", "web"), objects.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		told.want(t, "once the pod is gone")
	})
}
