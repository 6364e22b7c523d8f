package validation

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/podvol/podvol/volume"
)

// Bounds of a StorageClass' parameters, as in the API.
const (
	maxParameters     = 512
	maxParameterBytes = 256 << 10
)

// StorageClass refuses a StorageClass that the API server would refuse.
// It checks name, labels, annotations, provisioner, parameters, reclaim policy,
// binding mode and allowed topologies. A field that is not set has the API
// server's default. The error is as with [PodVolumes].
func StorageClass(class *storagev1.StorageClass) error {
	if class == nil {
		return volume.Invalid("StorageClass", "is missing")
	}
	var c checker
	c.clusterMeta(&class.ObjectMeta, "StorageClass")
	if class.Provisioner == "" {
		c.refuse("provisioner", "must not be empty; kubernetes.io/no-provisioner is the one that makes no volumes")
	} else if wrong := validation.IsQualifiedName(strings.ToLower(class.Provisioner)); len(wrong) > 0 {
		c.refuse("provisioner", "%q is no valid name: %s", class.Provisioner, strings.Join(wrong, "; "))
	}
	c.parameters("parameters", class.Parameters)
	if p := class.ReclaimPolicy; p != nil {
		oneOf(&c.faults, "reclaimPolicy", *p, v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRetain)
	}
	if m := class.VolumeBindingMode; m != nil {
		oneOf(&c.faults, "volumeBindingMode", *m, storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer)
	}
	c.topologies("allowedTopologies", class.AllowedTopologies)
	return c.err()
}

func (c *checker) parameters(at string, parameters map[string]string) {
	if len(parameters) > maxParameters {
		c.refuse(at, "there are %d, at most %d are allowed", len(parameters), maxParameters)
	}
	size := 0
	for key, value := range parameters {
		size += len(key) + len(value)
	}
	if size > maxParameterBytes {
		c.refuse(at, "they have %d bytes, at most %d are allowed", size, maxParameterBytes)
	}
	if _, ok := parameters[""]; ok {
		c.refuse(at, "a key must not be empty; name it")
	}
}

func (c *checker) topologies(at string, terms []v1.TopologySelectorTerm) {
	for i, term := range terms {
		at := fmt.Sprintf("%s[%d]", at, i)
		if slices.ContainsFunc(terms[:i], func(other v1.TopologySelectorTerm) bool { return equality.Semantic.DeepEqual(other, term) }) {
			c.refuse(at, "is there already; remove one")
		}
		keys := make(map[string]bool)
		for j, e := range term.MatchLabelExpressions {
			at := fmt.Sprintf("%s.matchLabelExpressions[%d]", at, j)
			c.names(at+".key", e.Key, validation.IsQualifiedName)
			if keys[e.Key] {
				c.refuse(at+".key", "%q is the key of another expression of this term; put the values together", e.Key)
			}
			keys[e.Key] = true
			c.topologyValues(at+".values", e.Values)
		}
	}
}

func (c *checker) topologyValues(at string, values []string) {
	if len(values) == 0 {
		c.refuse(at, "must name at least one value")
	}
	for i, value := range values {
		at := fmt.Sprintf("%s[%d]", at, i)
		if wrong := validation.IsValidLabelValue(value); len(wrong) > 0 {
			c.refuse(at, "%q is no value of a label: %s", value, strings.Join(wrong, "; "))
		}
		if slices.Contains(values[:i], value) {
			c.refuse(at, "%q is there already; remove one", value)
		}
	}
}
