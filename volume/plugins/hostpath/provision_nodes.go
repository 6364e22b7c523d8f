package hostpath

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
)

// otherNode says that a volume is to be made, deleted or emptied on another node
// than this one.
func otherNode(own, reason, next string) error {
	return &volume.Failure{
		Cause: ErrOtherNode, Subject: own, Next: next,
		What: fmt.Sprintf("hostPath volumes of other nodes cannot be reached from node %q: %s", own, reason),
	}
}

// hostnameFor returns this node's label kubernetes.io/hostname, if it is this
// node that a volume is to be made on.
func (p *plugin) hostnameFor(selected *v1.Node, allowed []v1.TopologySelectorTerm) (string, error) {
	own := string(p.Host.GetNodeName())
	refuse := func(reason, next string) (string, error) { return "", otherNode(own, reason, next) }
	labels := map[string]string{}
	switch {
	case own == "":
		return refuse("this one has no name", "give the volume host one (Host.NodeName)")
	case selected != nil && selected.Name != own:
		return refuse(fmt.Sprintf("node %q was selected for the claim's pod", selected.Name), "run podvol's controller there, or let the pod run here")
	case selected != nil:
		maps.Copy(labels, selected.Labels)
	}
	if labels[v1.LabelHostname] == "" {
		labels[v1.LabelHostname] = own
		if p.config.Provision.Hostname != "" {
			labels[v1.LabelHostname] = p.config.Provision.Hostname
		}
	}
	if !allows(allowed, labels) {
		if selected == nil {
			return refuse("allowedTopologies of the storage class do not allow it as far as is known without a pod",
				fmt.Sprintf("use volumeBindingMode WaitForFirstConsumer, or allow %s %q", v1.LabelHostname, labels[v1.LabelHostname]))
		}
		return refuse("allowedTopologies of the storage class do not allow it, and it was selected for the claim's pod", "let the pod run elsewhere")
	}
	return labels[v1.LabelHostname], nil
}

// allows reports whether a node with these labels is in one of the topologies,
// all of whose expressions must hold; no topologies allow every node.
func allows(terms []v1.TopologySelectorTerm, labels map[string]string) bool {
	return len(terms) == 0 || slices.ContainsFunc(terms, func(t v1.TopologySelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchLabelExpressions, func(e v1.TopologySelectorLabelRequirement) bool {
			return !slices.Contains(e.Values, labels[e.Key])
		})
	})
}

func affinityTo(hostname string) *v1.VolumeNodeAffinity {
	return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{hostname}}},
	}}}}
}

// checkHere refuses a volume that lies on another node. Its node affinity says
// so as far as the node's labels are known.
func (p *plugin) checkHere(pv *v1.PersistentVolume, labels map[string]string) error {
	own := string(p.Host.GetNodeName())
	here, err := claimbinding.MatchesNode(pv, labels, own)
	if err == nil && !here {
		err = otherNode(own, "the PersistentVolume's nodeAffinity is for others", "have podvol's controller on its node do it")
	}
	return err
}
