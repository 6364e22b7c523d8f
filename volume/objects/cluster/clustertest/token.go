package clustertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// isTokenRequest reports whether a request is for a service account's token.
func isTokenRequest(r *http.Request, a Request) bool {
	return a.Kind.Kind == "ServiceAccount" && r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/token")
}

// SetClockSkew moves the server's clock, which sets the times of tokens. A
// positive skew puts it ahead of the clients' clock.
func (s *Server) SetClockSkew(skew time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skew = skew
}

// podRequest is the request that the API's answers about a pod name.
func podRequest(ref volume.ObjectRef) Request {
	return Request{Kind: objects.Kind{GroupVersionKind: v1.SchemeGroupVersion.WithKind(ref.Kind)}, Namespace: ref.Namespace, Name: ref.Name}
}

// issueToken answers a TokenRequest. The account must exist, and the pod that the
// token is bound to must exist with its UID. Tokens are numbered: "token-1" is
// the server's first.
func (s *Server) issueToken(r *http.Request, a Request) (metav1.Object, error) {
	if _, err := s.store.Get(r.Context(), a.Ref()); err != nil {
		return nil, err
	}
	var request authenticationv1.TokenRequest
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		return nil, err
	}
	if bound := request.Spec.BoundObjectRef; bound != nil {
		pod, err := objects.Get[*v1.Pod](r.Context(), s.store, volume.NewObjectRef("Pod", a.Namespace, bound.Name))
		switch {
		case err != nil:
			return nil, err
		case bound.UID != "" && bound.UID != pod.UID:
			return nil, fmt.Errorf("pod %s has UID %s: %w", bound.Name, pod.UID, objects.ErrConflict)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens++
	life := time.Hour
	if seconds := request.Spec.ExpirationSeconds; seconds != nil {
		life = time.Duration(*seconds) * time.Second
	}
	now := time.Now().Add(s.skew)
	request.Namespace, request.Name, request.CreationTimestamp = a.Namespace, a.Name, metav1.NewTime(now)
	request.Status = authenticationv1.TokenRequestStatus{Token: fmt.Sprintf("token-%d", s.tokens), ExpirationTimestamp: metav1.NewTime(now.Add(life))}
	return &request, nil
}
