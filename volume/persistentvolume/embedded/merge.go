package embedded

import (
	"encoding/json"
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// merge returns the stored object, changed as from last to declared: a declared
// field gets its value, one that is declared no more goes away, and every other
// stays. Objects are merged field by field, lists are values, as in a JSON merge
// patch (RFC 7386). The arguments are only read.
func merge(stored, declared, last map[string]any) map[string]any {
	merged := maps.Clone(stored)
	if merged == nil {
		merged = make(map[string]any)
	}
	for name, was := range last {
		if _, still := declared[name]; !still {
			drop(merged, name, was)
		}
	}
	for name, want := range declared {
		have, isObject := merged[name].(map[string]any)
		fields, wantsObject := want.(map[string]any)
		if !isObject || !wantsObject {
			merged[name] = want
			continue
		}
		was, _ := last[name].(map[string]any)
		merged[name] = merge(have, fields, was)
	}
	return merged
}

// drop removes a declared field, but of an object only the declared fields: other
// programs may have written the rest.
func drop(from map[string]any, name string, was any) {
	have, isObject := from[name].(map[string]any)
	fields, wasObject := was.(map[string]any)
	if !isObject || !wasObject {
		delete(from, name)
		return
	}
	left := maps.Clone(have)
	for field, value := range fields {
		drop(left, field, value)
	}
	if len(left) == 0 {
		delete(from, name)
		return
	}
	from[name] = left
}

// content is the part of a stored claim or volume that can be declared. The field
// of the other kind is nil.
type content struct {
	// UID is the declared one, which the object need not have. It is only noted.
	UID         types.UID                     `json:"uid,omitempty"`
	Labels      map[string]string             `json:"labels,omitempty"`
	Annotations map[string]string             `json:"annotations,omitempty"`
	Claim       *v1.PersistentVolumeClaimSpec `json:"claim,omitempty"`
	Volume      *v1.PersistentVolumeSpec      `json:"volume,omitempty"`
}

func contentOf(object metav1.Object) content {
	c := content{Labels: object.GetLabels(), Annotations: maps.Clone(object.GetAnnotations())}
	delete(c.Annotations, lastApplied)
	delete(c.Annotations, appliedBy)
	switch o := object.(type) {
	case *v1.PersistentVolumeClaim:
		c.Claim = &o.Spec
	case *v1.PersistentVolume:
		c.Volume = &o.Spec
	}
	return c
}

// fields returns the content as JSON's objects, without nulls.
func (c content) fields() (map[string]any, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	return decodeFields(data)
}

func decodeFields(data []byte) (fields map[string]any, err error) {
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	return withoutNull(fields), nil
}

func withoutNull(fields map[string]any) map[string]any {
	for name, value := range fields {
		switch value := value.(type) {
		case nil:
			delete(fields, name)
		case map[string]any:
			withoutNull(value)
		}
	}
	return fields
}

// lastDeclared returns the fields with which an object was declared the last time.
func lastDeclared(stored metav1.Object) (map[string]any, error) {
	text := stored.GetAnnotations()[lastApplied]
	if text == "" {
		return nil, nil
	}
	last, err := decodeFields([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", lastApplied, err)
	}
	return last, nil
}

// merged returns the stored claim or volume as it is to be: its annotation has
// the last declaration. Declared is only read.
func merged(stored, declared metav1.Object, manager string) (metav1.Object, error) {
	want, err := contentOf(declared).fields()
	if err != nil {
		return nil, err
	}
	have, err := contentOf(stored).fields()
	if err != nil {
		return nil, err
	}
	last, err := lastDeclared(stored)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(merge(have, want, last))
	if err != nil {
		return nil, err
	}
	var c content
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, err
	}
	next := stored.(runtime.Object).DeepCopyObject().(metav1.Object)
	next.SetLabels(c.Labels)
	next.SetAnnotations(c.Annotations)
	switch o := next.(type) {
	case *v1.PersistentVolumeClaim:
		o.Spec = *c.Claim
	case *v1.PersistentVolume:
		o.Spec = *c.Volume
	}
	return next, mark(next, declared, manager)
}

// mark notes in annotations of an object its declared fields, as kubectl does,
// and the declaring program.
func mark(object, declared metav1.Object, manager string) error {
	content := contentOf(declared)
	content.UID = declared.GetUID()
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	annotations := maps.Clone(object.GetAnnotations())
	if annotations == nil {
		annotations = make(map[string]string)
	}
	annotations[lastApplied], annotations[appliedBy] = string(data), manager
	object.SetAnnotations(annotations)
	return nil
}
