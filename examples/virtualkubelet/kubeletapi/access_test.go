package kubeletapi

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// A permission that is withdrawn ends, however often it is used.
func TestPermissionsAreAskedForAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		allowed, reviews := true, 0
		api := fake.NewClientset()
		api.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
			review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
			review.Status.Allowed = allowed
			reviews++
			return true, review, nil
		})
		s := &Server{Config: Config{API: api, Node: "node1"}}
		asks := question{user: "u", verb: "get", subresource: "proxy"}
		for used := 0; ; used++ {
			may, err := s.may(t.Context(), asks, nil)
			if err != nil {
				t.Fatal(err)
			}
			if used == 0 {
				allowed = false
			}
			if !may {
				if reviews != 2 {
					t.Errorf("the API server was asked %d times", reviews)
				}
				return
			}
			if used > int(allowedFor/time.Minute) {
				t.Fatal("a permission outlives its withdrawal")
			}
			time.Sleep(time.Minute)
		}
	})
}

// A refusal is kept for a short time, so that who asks often costs the API server little, and
// a permission that is granted is used soon. An answer that has failed is not kept.
func TestRefusalsAreKeptForAShortTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fails error
		allowed, asked := false, 0
		api := fake.NewClientset()
		api.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
			review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
			review.Status.Allowed = allowed
			asked++
			return true, review, fails
		})
		s := &Server{Config: Config{API: api, Node: "node1"}}
		asks := question{user: "u", verb: "get", subresource: "proxy"}
		expect := func(wantMay bool, wantAsked int) {
			t.Helper()
			if may, err := s.may(t.Context(), asks, nil); may != wantMay || asked != wantAsked || (err != nil) != (fails != nil) {
				t.Errorf("may: %v, %v, after %d requests", may, err, asked)
			}
		}
		expect(false, 1)
		allowed = true
		time.Sleep(refusedFor - time.Second)
		expect(false, 1)
		time.Sleep(time.Second)
		fails = errors.New("away")
		if may, err := s.may(t.Context(), asks, nil); may || err == nil {
			t.Errorf("a failed request: %v, %v", may, err)
		}
		fails = nil
		expect(true, 3)
		expect(true, 3)
	})
}
