package main

import (
	"bytes"
	"os"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

func manifestOf(t *testing.T, name string) (objects []runtime.Object) {
	t.Helper()
	manifest, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for document := range bytes.SplitSeq(manifest, []byte("\n---\n")) {
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(document, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
	return objects
}

// What each mode may write, and nothing else: a provisioner volumes, finalizers and annotations of
// claims, events and its lease; who attaches the finalizers of volumes and the lists of nodes.
func TestRightsToWrite(t *testing.T) {
	for manifest, mayWrite := range map[string]map[string][]string{
		"testdata/controller.yaml": {
			"persistentvolumes":      {"create", "update", "delete"},
			"persistentvolumeclaims": {"update"},
			"events":                 {"create", "patch"},
			"leases":                 {"create", "update"},
		},
		"testdata/attach-detach.yaml": {
			"persistentvolumes":        {"update"},
			"nodes/status":             {"update"},
			"volumeattachments":        {"create", "update", "delete"},
			"volumeattachments/status": {"update"},
			"events":                   {"create", "patch"},
			"leases":                   {"create", "update"},
		},
	} {
		rules := rulesOf(t, manifest)
		if len(rules) == 0 {
			t.Errorf("%s has no rights", manifest)
		}
		for _, rule := range rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					if !slices.Contains([]string{"get", "list", "watch"}, verb) && !slices.Contains(mayWrite[resource], verb) {
						t.Errorf("by %s it may %s %s", manifest, verb, resource)
					}
				}
			}
		}
	}
}

func rulesOf(t *testing.T, manifest string) (rules []rbacv1.PolicyRule) {
	t.Helper()
	for _, object := range manifestOf(t, manifest) {
		switch o := object.(type) {
		case *rbacv1.ClusterRole:
			rules = append(rules, o.Rules...)
		case *rbacv1.Role:
			rules = append(rules, o.Rules...)
		}
	}
	return rules
}

// Pods that empty volumes are made in one namespace.
func TestRightsToMakePods(t *testing.T) {
	for _, object := range manifestOf(t, "testdata/everything.yaml") {
		role, ok := object.(*rbacv1.ClusterRole)
		if !ok {
			continue
		}
		for _, rule := range role.Rules {
			if slices.Contains(rule.Resources, "pods") {
				t.Errorf("it may %v pods of every namespace", rule.Verbs)
			}
		}
	}
}
