package kubeletapi

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// How long an answer of the API server is kept, as the kubelet does.
const (
	allowedFor = 5 * time.Minute
	refusedFor = 30 * time.Second
)

// reviews are answers of the API server, each until some time after it was asked.
type reviews struct {
	mu   sync.Mutex
	kept map[question]answer
}

type question struct{ user, groups, verb, subresource string }

type answer struct {
	may   bool
	until time.Time
}

func (r *reviews) find(what question) (may, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.kept[what]
	return a.may, time.Now().Before(a.until)
}

func (r *reviews) keep(what question, may bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept == nil || len(r.kept) > 1000 {
		r.kept = make(map[question]answer)
	}
	life := refusedFor
	if may {
		life = allowedFor
	}
	r.kept[what] = answer{may, time.Now().Add(life)}
}

// authorized lets through what the caller may do.
func (s *Server) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
			http.Error(w, "a client certificate is required", http.StatusUnauthorized)
			return
		}
		subject := r.TLS.PeerCertificates[0].Subject
		if subject.CommonName == "" {
			http.Error(w, "the client certificate names no user", http.StatusUnauthorized)
			return
		}
		asks := question{subject.CommonName, fmt.Sprintf("%q", subject.Organization), verbOf(r), subresourceOf(r.URL.Path)}
		may, err := s.may(r.Context(), asks, subject.Organization)
		switch {
		case err != nil:
			http.Error(w, "the API server does not say what you may do: "+err.Error(), http.StatusInternalServerError)
		case !may:
			http.Error(w, "user "+asks.user+" may not "+asks.verb+" nodes/"+asks.subresource, http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// may asks the API server, unless it has answered the same a short time ago. What is
// asked often is asked anew as well: permissions are withdrawn.
func (s *Server) may(ctx context.Context, asks question, groups []string) (bool, error) {
	if may, known := s.reviews.find(asks); known {
		return may, nil
	}
	may, err := s.review(ctx, asks, groups)
	if err == nil {
		s.reviews.keep(asks, may)
	}
	return may, err
}

func (s *Server) review(ctx context.Context, asks question, groups []string) (bool, error) {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: asks.user, Groups: append([]string{"system:authenticated"}, groups...),
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: asks.verb, Version: "v1", Resource: "nodes", Subresource: asks.subresource, Name: s.Node}}}
	answer, err := s.API.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed && !answer.Status.Denied, nil
}

// verbOf is the kubelet's. A session is begun by GET or POST, and changes the container.
func verbOf(r *http.Request) string {
	for _, session := range []string{"/exec/", "/attach/", "/portForward/"} {
		if strings.HasPrefix(r.URL.Path, session) {
			return "create"
		}
	}
	if r.Method == http.MethodPost {
		return "create"
	}
	return "get"
}

func subresourceOf(path string) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch first {
	case "stats", "metrics":
		return first
	case "logs":
		return "log"
	}
	return "proxy"
}
