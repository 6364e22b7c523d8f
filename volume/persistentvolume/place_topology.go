package persistentvolume

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// isAllowedOn reports whether a class lets its volumes be made for a node.
func isAllowedOn(class *storagev1.StorageClass, node *v1.Node) bool {
	return len(class.AllowedTopologies) == 0 || slices.ContainsFunc(class.AllowedTopologies, func(term v1.TopologySelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchLabelExpressions, func(e v1.TopologySelectorLabelRequirement) bool {
			value, ok := node.Labels[e.Key]
			return !ok || !slices.Contains(e.Values, value)
		})
	})
}

// notMadeOn adds to why a claim has found no volume that its class makes none for
// the node.
func notMadeOn(why error, class *storagev1.StorageClass, node *v1.Node) error {
	reason := fmt.Errorf("%w: storage class %q makes volumes only for nodes with %s, which %q is not: label the node, or make the class anew with other allowedTopologies",
		errorOf(why), class.Name, topologiesOf(class), node.Name)
	unbound, ok := errors.AsType[*index.UnboundError](why)
	if !ok {
		return reason
	}
	there := *unbound
	there.Err = reason
	return &there
}

// errorOf returns what an [index.UnboundError] holds, or else the error itself.
func errorOf(why error) error {
	if unbound, ok := errors.AsType[*index.UnboundError](why); ok {
		return unbound.Err
	}
	return why
}

func topologiesOf(class *storagev1.StorageClass) string {
	terms := make([]string, 0, len(class.AllowedTopologies))
	for _, term := range class.AllowedTopologies {
		labels := make([]string, 0, len(term.MatchLabelExpressions))
		for _, e := range term.MatchLabelExpressions {
			labels = append(labels, fmt.Sprintf("%s in (%s)", e.Key, strings.Join(e.Values, ", ")))
		}
		terms = append(terms, strings.Join(labels, " and "))
	}
	return strings.Join(terms, ", or ")
}
