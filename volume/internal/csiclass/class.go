// Package csiclass reads what a StorageClass says of the volumes of a CSI driver: the
// driver's own parameters, and those of Kubernetes that begin with "csi.storage.k8s.io/".
// Meaning and names are external-provisioner's.
package csiclass

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/podvol/podvol/volume"
)

const (
	prefix     = "csi.storage.k8s.io/"
	keyFSType  = prefix + "fstype"
	oldFSType  = "fstype" // which drivers get, too
	nameKey    = "-secret-name"
	namespaces = "-secret-namespace"
)

// Use is what a secret is for, as the keys of the parameters spell it.
type Use string

// The uses of secrets.
const (
	Provisioner       Use = "provisioner"
	ControllerPublish Use = "controller-publish"
	NodeStage         Use = "node-stage"
	NodePublish       Use = "node-publish"
	ControllerExpand  Use = "controller-expand"
	NodeExpand        Use = "node-expand"
	ControllerModify  Use = "controller-modify"
)

// Uses returns all of them.
func Uses() []Use {
	return []Use{Provisioner, ControllerPublish, NodeStage, NodePublish, ControllerExpand, NodeExpand, ControllerModify}
}

// Class is what a StorageClass says.
type Class struct {
	// FSType is the file system of new volumes; empty: the driver's choice.
	FSType string
	// Parameters are the driver's.
	Parameters map[string]string
	templates  map[Use]template
}

// template has the names of a secret before the claim's are put into them.
type template struct{ name, namespace string }

// Parse reads the parameters of a class, and keeps none of them. Keys that begin with
// csi.storage.k8s.io/ and mean nothing, two types of file system, and half of a secret's
// name are an *[volume.InvalidSpecError].
func Parse(parameters map[string]string) (*Class, error) {
	c := &Class{Parameters: make(map[string]string), templates: make(map[Use]template)}
	typed := ""
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		value := parameters[key]
		if key == keyFSType || strings.EqualFold(key, oldFSType) {
			if typed != "" {
				return nil, volume.Invalid("parameters", "have both %s and %s; keep %s", typed, key, keyFSType)
			}
			c.FSType, typed = value, key
			if err := CheckFSType("parameters."+key, value); err != nil {
				return nil, err
			}
		}
		if !strings.HasPrefix(key, prefix) {
			c.Parameters[key] = value
		} else if key != keyFSType && !c.addSecret(strings.TrimPrefix(key, prefix), value) {
			return nil, volume.Invalid("parameters", "have the key %q, which is not known; %s is Kubernetes' own", key, prefix)
		}
	}
	for _, use := range Uses() {
		if t := c.templates[use]; (t.name == "") != (t.namespace == "") {
			return nil, volume.Invalid("parameters", "name the secret for %s only half: both %[2]s%[1]s%[3]s and %[2]s%[1]s%[4]s are needed", use, prefix, nameKey, namespaces)
		}
	}
	return c, nil
}

func (c *Class) addSecret(key, value string) (known bool) {
	for _, use := range Uses() {
		t := c.templates[use]
		switch key {
		case string(use) + nameKey:
			t.name = value
		case string(use) + namespaces:
			t.namespace = value
		default:
			continue
		}
		c.templates[use] = t
		return true
	}
	return false
}

// Secret returns the secret for a use; nil: the class names none. Names may hold
// ${pv.name}, ${pvc.name}, ${pvc.namespace} and ${pvc.annotations['key']}; namespaces only
// ${pv.name} and ${pvc.namespace}, since a user who may write a claim must not choose
// another's secret. A name that is none after that is an *[volume.InvalidSpecError].
func (c *Class) Secret(use Use, pvName string, claim *v1.PersistentVolumeClaim) (*v1.SecretReference, error) {
	t := c.templates[use]
	if t.name == "" {
		return nil, nil
	}
	values := map[string]string{"pv.name": pvName, "pvc.namespace": claim.Namespace}
	namespace, err := fill(t.namespace, values)
	if wrong := validation.IsDNS1123Label(namespace); err == nil && len(wrong) > 0 {
		err = fmt.Errorf("%q is no namespace: %s", namespace, strings.Join(wrong, "; "))
	}
	if err != nil {
		return nil, volume.Invalid("parameters."+prefix+string(use)+namespaces, "%v", err)
	}
	values["pvc.name"] = claim.Name
	for key, value := range claim.Annotations {
		values["pvc.annotations['"+key+"']"] = value
	}
	name, err := fill(t.name, values)
	if wrong := validation.IsDNS1123Subdomain(name); err == nil && len(wrong) > 0 {
		err = fmt.Errorf("%q is no name of a secret: %s", name, strings.Join(wrong, "; "))
	}
	if err != nil {
		return nil, volume.Invalid("parameters."+prefix+string(use)+nameKey, "%v", err)
	}
	return &v1.SecretReference{Namespace: namespace, Name: name}, nil
}

// fill puts values in the place of ${key}.
func fill(text string, values map[string]string) (string, error) {
	var filled strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		filled.WriteString(before)
		if !found {
			return filled.String(), nil
		}
		key, after, closed := strings.Cut(rest, "}")
		value, known := values[key]
		if !closed || !known {
			return "", fmt.Errorf("${%.80s has no value here", rest)
		}
		filled.WriteString(value)
		text = after
	}
}

// CheckFSType refuses a type of file systems that is no single word: drivers may make a command
// line, or the name of a program, of it. It may be empty.
func CheckFSType(field, fsType string) error {
	word := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)
	}
	if len(fsType) > 64 || strings.HasPrefix(fsType, "-") || strings.HasPrefix(fsType, ".") || strings.ContainsFunc(fsType, func(r rune) bool { return !word(r) }) {
		return volume.Invalid(field, "is no type of file systems, such as ext4: %.80q", fsType)
	}
	return nil
}
