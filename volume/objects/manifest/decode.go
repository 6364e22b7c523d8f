package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
)

// maxListDepth is how deep Lists and arrays may be nested.
const maxListDepth = 4

// placed is a decoded object and its place.
type placed struct {
	place
	kind   string
	object metav1.Object
}

func (p placed) ref() volume.ObjectRef {
	return volume.NewObjectRef(p.kind, p.object.GetNamespace(), p.object.GetName())
}

// decoder collects the objects of documents.
type decoder struct {
	objects []placed
	skipped []Skipped
	faults  []error
}

// document decodes one document.
func (d *decoder) document(doc document) {
	data, duplicates, err := toJSON(doc)
	if err != nil {
		d.refuse(doc.place, "", "", err)
		return
	}
	for _, f := range duplicates {
		d.refuse(doc.place, "", f.field, f.err)
	}
	d.value(doc.place, "", data, metav1.TypeMeta{}, 0)
}

func (d *decoder) refuse(p place, object, field string, err error) {
	d.faults = append(d.faults, p.fault(object, field, err))
}

// value decodes an object, a List or an array. path is its place in the document.
// inherited is the type of a typed List's elements.
func (d *decoder) value(p place, path string, data []byte, inherited metav1.TypeMeta, depth int) {
	data = bytes.TrimSpace(data)
	switch {
	case depth > maxListDepth:
		d.refuse(p, "", path, fmt.Errorf("lists are nested more than %d deep", maxListDepth))
	case len(data) > 0 && data[0] == '[':
		var elements []json.RawMessage
		if err := json.Unmarshal(data, &elements); err != nil {
			d.refuse(p, "", path, errors.New("it is no valid JSON list"))
			return
		}
		d.elements(p, path, elements, metav1.TypeMeta{}, depth)
	case len(data) > 0 && data[0] == '{':
		d.objectOrList(p, path, data, inherited, depth)
	default:
		d.refuse(p, "", path, errors.New("it is no object; a manifest has at least apiVersion, kind and metadata"))
	}
}

func (d *decoder) elements(p place, path string, elements []json.RawMessage, inherited metav1.TypeMeta, depth int) {
	for i, element := range elements {
		d.value(p, fmt.Sprintf("%s[%d]", path, i), element, inherited, depth+1)
	}
}

func (d *decoder) objectOrList(p place, path string, data []byte, inherited metav1.TypeMeta, depth int) {
	var head struct {
		metav1.TypeMeta
		Items json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		d.refuse(p, "", join(path, "kind"), errors.New("apiVersion and kind must be strings"))
		return
	}
	if head.Kind == "" && head.APIVersion == "" {
		head.TypeMeta = inherited
	}
	switch {
	case head.Kind == "":
		d.refuse(p, "", join(path, "kind"), errors.New("it is missing; a manifest has at least apiVersion, kind and metadata"))
	case head.APIVersion == "":
		d.refuse(p, head.Kind, join(path, "apiVersion"), errors.New("it is missing"))
	case strings.HasSuffix(head.Kind, "List"):
		d.list(p, path, data, head.TypeMeta, depth)
	default:
		d.object(p, path, data, head.TypeMeta)
	}
}

func (d *decoder) list(p place, path string, data []byte, of metav1.TypeMeta, depth int) {
	var list struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metav1.ListMeta   `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}
	for _, f := range unmarshal(data, &list) {
		d.refuse(p, of.Kind, join(path, f.field), f.err)
	}
	inherited := metav1.TypeMeta{APIVersion: of.APIVersion, Kind: strings.TrimSuffix(of.Kind, "List")}
	if inherited.Kind == "" {
		inherited.APIVersion = ""
	}
	d.elements(p, join(path, "items"), list.Items, inherited, depth)
}

func (d *decoder) object(p place, path string, data []byte, of metav1.TypeMeta) {
	object, namespaced, err := newObject(of.APIVersion, of.Kind)
	if err != nil {
		d.refuse(p, "", path, err)
		return
	}
	if object == nil {
		d.skip(p, data, of)
		return
	}
	faults := unmarshal(data, object)
	if namespaced && object.GetNamespace() == "" {
		object.SetNamespace(v1.NamespaceDefault)
	}
	object.SetResourceVersion("")
	object.SetManagedFields(nil) // how it came to be is of no use here
	found := placed{place: p, kind: of.Kind, object: object}
	for _, f := range faults {
		d.refuse(p, found.ref().String(), join(path, f.field), f.err)
	}
	if len(faults) == 0 {
		d.objects = append(d.objects, found)
	}
}

func (d *decoder) skip(p place, data []byte, of metav1.TypeMeta) {
	var named metav1.PartialObjectMetadata
	_ = json.Unmarshal(data, &named) // the name only makes the notice clearer
	d.skipped = append(d.skipped, Skipped{
		File: p.file, Document: p.document,
		Ref:    volume.NewObjectRef(of.Kind, named.Namespace, named.Name),
		Reason: fmt.Sprintf("a %s of %s has no part in mounting volumes", of.Kind, of.APIVersion),
	})
}
