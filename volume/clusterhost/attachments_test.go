package clusterhost_test

import (
	"errors"
	"net/http"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/clusterhost"
)

// Each question is asked of the API. What is missing, or none of this node's, is told from
// an API that fails.
func TestAttachments(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := clusterhost.NewAttachments(w.clientset)
		if _, err := a.GetVolumeAttachment(t.Context(), "csi-1"); !errors.Is(err, volume.ErrNotFound) {
			t.Errorf("missing: %v", err)
		}
		w.add(&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "csi-1"}})
		for range 2 {
			if found, err := a.GetVolumeAttachment(t.Context(), "csi-1"); err != nil || found.Name != "csi-1" {
				t.Errorf("got %v, %v", found, err)
			}
		}
		if n := w.asked("get VolumeAttachment"); n != 3 {
			t.Errorf("%d requests", n)
		}
		for _, status := range []metav1.Status{apierrors.NewForbidden(storagev1.Resource("volumeattachments"), "csi-1", nil).Status(), apierrors.NewInternalError(errors.New("x")).Status()} {
			w.api.Refuse(func(*http.Request) *metav1.Status { return &status })
			_, err := a.GetVolumeAttachment(t.Context(), "csi-1")
			if err == nil || errors.Is(err, volume.ErrNotFound) != (status.Code == http.StatusForbidden) {
				t.Errorf("%d: %v", status.Code, err)
			}
		}
	})
}
