package nfs

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
)

// affinityOf lets a volume be used on the nodes of a class's topologies only:
// one of the terms must match, with all of its labels, as
// storage.k8s.io/v1's StorageClass.allowedTopologies says. No terms allow
// every node.
func affinityOf(terms []v1.TopologySelectorTerm) *v1.VolumeNodeAffinity {
	var selector v1.NodeSelector
	for _, t := range terms {
		var term v1.NodeSelectorTerm
		for _, e := range t.MatchLabelExpressions {
			term.MatchExpressions = append(term.MatchExpressions,
				v1.NodeSelectorRequirement{Key: e.Key, Operator: v1.NodeSelectorOpIn, Values: slices.Clone(e.Values)})
		}
		selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, term)
	}
	if len(selector.NodeSelectorTerms) == 0 {
		return nil
	}
	return &v1.VolumeNodeAffinity{Required: &selector}
}

// checkNode refuses a node that could not use the volume.
func checkNode(pv *v1.PersistentVolume, node *v1.Node) error {
	if node == nil {
		return nil
	}
	fits, err := claimbinding.MatchesNode(pv, node.Labels, node.Name)
	if err == nil && !fits {
		err = volume.Invalid("allowedTopologies", "do not allow the node %q that was selected for the claim's pod", node.Name)
	}
	return err
}
