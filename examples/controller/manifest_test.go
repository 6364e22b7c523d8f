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

// A provisioner writes volumes, finalizers and annotations of claims, events and
// its lease, and nothing else.
func TestRightsOfAProvisioner(t *testing.T) {
	mayWrite := map[string][]string{
		"persistentvolumes":      {"create", "update", "delete"},
		"persistentvolumeclaims": {"update"},
		"events":                 {"create", "patch"},
		"leases":                 {"create", "update"},
	}
	rules := 0
	for _, object := range manifestOf(t, "testdata/controller.yaml") {
		var granted []rbacv1.PolicyRule
		switch o := object.(type) {
		case *rbacv1.ClusterRole:
			granted = o.Rules
		case *rbacv1.Role:
			granted = o.Rules
		}
		for _, rule := range granted {
			rules++
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					if !slices.Contains([]string{"get", "list", "watch"}, verb) && !slices.Contains(mayWrite[resource], verb) {
						t.Errorf("it may %s %s", verb, resource)
					}
				}
			}
		}
	}
	if rules == 0 {
		t.Error("the manifest has no rights")
	}
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
