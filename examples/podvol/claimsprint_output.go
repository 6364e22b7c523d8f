package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/podvol/podvol/util/secretopt"
)

// storedObject is a claim or a PersistentVolume.
type storedObject interface {
	metav1.Object
	runtime.Object
}

// storedKind is what kubectl calls objects of a kind.
type storedKind struct{ kind, singular, plural string }

var (
	volumeKind = storedKind{"PersistentVolume", "persistentvolume", "persistentvolumes"}
	claimKind  = storedKind{"PersistentVolumeClaim", "persistentvolumeclaim", "persistentvolumeclaims"}
)

// checkStoredOutput refuses a format that there is not.
func checkStoredOutput(format string) error {
	if slices.Contains([]string{"", "wide", "json", "yaml", "name"}, format) {
		return nil
	}
	return usagef("-o %q must be wide, json, yaml or name, or left out", format)
}

// printStored prints objects as kubectl get -o FORMAT does: one that was asked
// for by its name alone as itself, all else as a list.
func printStored[T storedObject](out io.Writer, format string, kind storedKind, all []T, single bool, table func(wide bool) columns) error {
	switch format {
	case "json", "yaml":
		return printDocument(out, format, kind, all, single)
	case "name":
		for _, o := range all {
			if _, err := fmt.Fprintf(out, "%s/%s\n", kind.singular, o.GetName()); err != nil {
				return err
			}
		}
		return nil
	}
	if len(all) == 0 {
		return nil
	}
	return table(format == "wide").print(out)
}

// printDocument masks passwords among mount options.
func printDocument[T storedObject](out io.Writer, format string, kind storedKind, all []T, single bool) error {
	items := make([]any, 0, len(all))
	for _, o := range all {
		document, err := documentOf(o, kind.kind)
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

// documentOf returns an object as it is in a manifest, its kind included, which
// stores leave out.
func documentOf(o runtime.Object, kind string) (map[string]any, error) {
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
