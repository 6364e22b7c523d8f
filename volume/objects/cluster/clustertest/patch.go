package clustertest

import (
	"encoding/json"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// patched is the object after a merge patch (RFC 7386) or a strategic one. A
// resourceVersion in the patch must be the object's.
func (s *Server) patched(r *http.Request, a Request) (metav1.Object, error) {
	old, err := s.store.Get(r.Context(), a.Ref())
	if err != nil {
		return nil, err
	}
	patch, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	before, err := json.Marshal(old)
	if err != nil {
		return nil, err
	}
	next := a.Kind.New()
	var after []byte
	switch kind := types.PatchType(r.Header.Get("Content-Type")); kind {
	case types.StrategicMergePatchType:
		after, err = strategicpatch.StrategicMergePatch(before, patch, next)
	case types.MergePatchType:
		after, err = merged(before, patch)
	default:
		return nil, apierrors.NewGenericServerResponse(http.StatusUnsupportedMediaType, "patch", a.resource(), a.Name, string(kind), 0, true)
	}
	if err == nil {
		err = json.Unmarshal(after, next)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return next, nil
}

func merged(before, patch []byte) ([]byte, error) {
	var object, changes map[string]any
	if err := json.Unmarshal(before, &object); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(patch, &changes); err != nil {
		return nil, err
	}
	return json.Marshal(mergePatch(object, changes))
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
