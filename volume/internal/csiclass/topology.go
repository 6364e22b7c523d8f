package csiclass

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Affinity lets a volume be used where a driver says that it can be reached: one of the
// topologies must match, with all of its segments. Without any it is nil: everywhere.
func Affinity(topologies []map[string]string) *v1.VolumeNodeAffinity {
	var selector v1.NodeSelector
	for _, segments := range topologies {
		var term v1.NodeSelectorTerm
		for _, key := range slices.Sorted(maps.Keys(segments)) {
			term.MatchExpressions = append(term.MatchExpressions,
				v1.NodeSelectorRequirement{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{segments[key]}})
		}
		if len(term.MatchExpressions) > 0 {
			selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, term)
		}
	}
	if len(selector.NodeSelectorTerms) == 0 {
		return nil
	}
	return &v1.VolumeNodeAffinity{Required: &selector}
}

// AddNode lets a volume be used on this node by its name, too, if one of the topologies is
// the node's: without a cluster no Node has the drivers' labels.
func AddNode(affinity *v1.VolumeNodeAffinity, topologies []map[string]string, segments map[string]string, node string) {
	here := func(topology map[string]string) bool {
		for key, value := range topology {
			if segments[key] != value {
				return false
			}
		}
		return len(topology) > 0
	}
	if affinity == nil || !slices.ContainsFunc(topologies, here) {
		return
	}
	affinity.Required.NodeSelectorTerms = append(affinity.Required.NodeSelectorTerms, v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{
		{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{node}}}})
}

// Allows reports whether the terms of a class, or no terms, allow a node with these
// segments.
func Allows(terms []v1.TopologySelectorTerm, segments map[string]string) bool {
	return len(terms) == 0 || slices.ContainsFunc(terms, func(term v1.TopologySelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchLabelExpressions, func(e v1.TopologySelectorLabelRequirement) bool {
			value, has := segments[e.Key]
			return !has || !slices.Contains(e.Values, value)
		})
	})
}
