package claimbinding

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/podvol/podvol/volume"
)

// nodeNameField is the only field that matchFields of a node selector knows.
const nodeNameField = "metadata.name"

// LocalVolumeMissing is an annotation of a PersistentVolume whose disk is not at
// its place. It says since when, and why. Discovery of local volumes sets and
// removes it. No claim is bound to such a volume unless the volume was chosen for
// the claim.
const LocalVolumeMissing = "podvol.io/local-volume-missing"

// MatchesNode reports whether a node can reach the volume.
//
//   - Without node affinity every node can.
//   - With node affinity one of the selector's terms must match. A term without
//     expressions matches nothing.
//   - If nodeLabels lack kubernetes.io/hostname, nodeName is its value.
//
// An invalid expression is an *[volume.InvalidSpecError]. The arguments are not changed.
func MatchesNode(pv *v1.PersistentVolume, nodeLabels map[string]string, nodeName string) (bool, error) {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return true, nil
	}
	matched := false
	for i, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		path := fmt.Sprintf("spec.nodeAffinity.required.nodeSelectorTerms[%d]", i)
		ok, err := termMatches(path, term, withHostname(nodeLabels, nodeName), nodeName)
		if err != nil {
			return false, err
		}
		matched = matched || ok
	}
	return matched, nil
}

func withHostname(nodeLabels map[string]string, nodeName string) labels.Set {
	if _, ok := nodeLabels[v1.LabelHostname]; ok {
		return nodeLabels
	}
	return labels.Merge(nodeLabels, labels.Set{v1.LabelHostname: nodeName})
}

func termMatches(path string, term v1.NodeSelectorTerm, nodeLabels labels.Set, nodeName string) (bool, error) {
	matched := len(term.MatchExpressions)+len(term.MatchFields) > 0
	for i, e := range term.MatchExpressions {
		r, err := requirement(e)
		if err != nil {
			return false, volume.Invalid(fmt.Sprintf("%s.matchExpressions[%d]", path, i), "%v", err)
		}
		matched = matched && r.Matches(nodeLabels)
	}
	for i, f := range term.MatchFields {
		ok, err := fieldMatches(f, nodeName)
		if err != nil {
			return false, volume.Invalid(fmt.Sprintf("%s.matchFields[%d]", path, i), "%v", err)
		}
		matched = matched && ok
	}
	return matched, nil
}

func requirement(e v1.NodeSelectorRequirement) (*labels.Requirement, error) {
	operators := map[v1.NodeSelectorOperator]selection.Operator{
		v1.NodeSelectorOpIn:           selection.In,
		v1.NodeSelectorOpNotIn:        selection.NotIn,
		v1.NodeSelectorOpExists:       selection.Exists,
		v1.NodeSelectorOpDoesNotExist: selection.DoesNotExist,
		v1.NodeSelectorOpGt:           selection.GreaterThan,
		v1.NodeSelectorOpLt:           selection.LessThan,
	}
	operator, ok := operators[e.Operator]
	if !ok {
		return nil, fmt.Errorf("operator %q is not one of In, NotIn, Exists, DoesNotExist, Gt, Lt", e.Operator)
	}
	return labels.NewRequirement(e.Key, operator, e.Values)
}

func fieldMatches(f v1.NodeSelectorRequirement, nodeName string) (bool, error) {
	switch {
	case f.Key != nodeNameField:
		return false, fmt.Errorf("key %q is not %s, the only field there is", f.Key, nodeNameField)
	case len(f.Values) != 1:
		return false, fmt.Errorf("there must be exactly one value, there are %d", len(f.Values))
	case len(validation.IsDNS1123Subdomain(f.Values[0])) > 0:
		return false, fmt.Errorf("value %q is not the name of a node", f.Values[0])
	case f.Operator == v1.NodeSelectorOpIn:
		return slices.Contains(f.Values, nodeName), nil
	case f.Operator == v1.NodeSelectorOpNotIn:
		return !slices.Contains(f.Values, nodeName), nil
	}
	return false, fmt.Errorf("operator %q is not In or NotIn", f.Operator)
}
