package kubectlget

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/podvol/podvol/util/secretopt"
)

// Object is a claim or a PersistentVolume.
type Object interface {
	metav1.Object
	runtime.Object
}

// Kind is what kubectl calls objects of a kind.
type Kind struct{ Kind, Singular, Plural string }

// The kinds.
var (
	VolumeKind = Kind{"PersistentVolume", "persistentvolume", "persistentvolumes"}
	ClaimKind  = Kind{"PersistentVolumeClaim", "persistentvolumeclaim", "persistentvolumeclaims"}
)

// Formats are those of kubectl get; the first one is the usual one.
func Formats() []string { return []string{"table", "wide", "json", "yaml", "name"} }

// Print prints objects as kubectl get -o FORMAT does: one that was asked
// for by its name alone as itself, all else as a list.
func Print[T Object](out io.Writer, format string, kind Kind, all []T, single bool, table func() Table) error {
	switch format {
	case "json", "yaml":
		return printDocument(out, format, kind, all, single)
	case "name":
		for _, o := range all {
			if _, err := fmt.Fprintf(out, "%s/%s\n", kind.Singular, o.GetName()); err != nil {
				return err
			}
		}
		return nil
	}
	if len(all) == 0 {
		return nil
	}
	return table().Print(out, format == "wide")
}

// printDocument masks passwords among mount options.
func printDocument[T Object](out io.Writer, format string, kind Kind, all []T, single bool) error {
	items := make([]any, 0, len(all))
	for _, o := range all {
		document, err := DocumentOf(o, kind.Kind)
		if err != nil {
			return err
		}
		secretopt.Document(document)
		items = append(items, document)
	}
	document := any(map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{"resourceVersion": ""}, "items": items})
	if single && len(items) == 1 {
		document = items[0]
	}
	var text []byte
	var err error
	if format == "json" {
		text, err = json.MarshalIndent(document, "", "    ")
		text = append(text, '\n')
	} else {
		text, err = yaml.Marshal(document)
	}
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}

// DocumentOf returns an object as it is in a manifest, its kind included, which
// stores leave out.
func DocumentOf(o runtime.Object, kind string) (map[string]any, error) {
	data, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	var document map[string]any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // a float would round
	if err := decoder.Decode(&document); err != nil {
		return nil, err
	}
	document["apiVersion"], document["kind"] = "v1", kind
	return document, nil
}
