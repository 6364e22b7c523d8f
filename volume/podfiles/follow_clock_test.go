package podfiles

import (
	"context"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/objects"
)

// hourly issues tokens that live for an hour.
type hourly struct{}

func (hourly) RequestToken(context.Context, string, string, *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	return &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{
		Token: "token", ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour))}}, nil
}

// The queue is told the time of a refresh by both clocks, and not a pause, which stands still
// while the machine sleeps.
func TestATokenIsFollowedByBothClocks(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: types.UID("u")}}
	pod.Spec.Volumes = []v1.Volume{{Name: "token", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{
		Sources: []v1.VolumeProjection{{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}}}}}}}
	var told *Set
	w := &follower{pod: pod, from: WatchSources{Objects: objects.NewStore(), Tokens: hourly{}}, volumes: make(map[string]*followed),
		call: func(_ string, s *Set, _ error) { told = s }}
	if _, err := w.prepare(); err != nil {
		t.Fatal(err)
	}
	result := w.reconcile(t.Context(), "token")
	if told == nil || result.After != 0 || result.At != told.RefreshAfter || result.At == result.At.Round(0) {
		t.Errorf("result %+v of %+v: want the time of its refresh, by both clocks", result, told)
	}
}
