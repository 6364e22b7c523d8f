package clustertest

import (
	"encoding/json"
	"io"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// patched is an object as a merge patch (RFC 7386) has it. Other kinds of patches are
// taken for one; those of API objects mostly are. A resourceVersion in the patch must
// be the object's.
func (s *Server) patched(r *http.Request, a Request) (metav1.Object, error) {
	old, err := s.store.Get(r.Context(), a.Ref())
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(old)
	if err != nil {
		return nil, err
	}
	var object, patch map[string]any
	if err := json.Unmarshal(encoded, &object); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(body, &patch); err != nil {
		return nil, err
	}
	merged, err := json.Marshal(mergePatch(object, patch))
	if err != nil {
		return nil, err
	}
	next := a.Kind.New()
	return next, json.Unmarshal(merged, next)
}

func mergePatch(object, patch map[string]any) map[string]any {
	if object == nil {
		object = make(map[string]any)
	}
	for key, value := range patch {
		switch v := value.(type) {
		case nil:
			delete(object, key)
		case map[string]any:
			inner, _ := object[key].(map[string]any)
			object[key] = mergePatch(inner, v)
		default:
			object[key] = v
		}
	}
	return object
}
