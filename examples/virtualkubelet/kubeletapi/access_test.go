package kubeletapi

import (
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
		asks := allowance{user: "u", verb: "get", subresource: "proxy"}
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
