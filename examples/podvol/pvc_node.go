package main

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/plugins"
)

// checkNode refuses to delete storage by a name of this machine under which it
// cannot be reached: podvol mount may have made it under another one, which the
// manifests gave.
func checkNode(pv *v1.PersistentVolume, nodeName string) error {
	if !persistentvolume.DeletesStorage(pv, plugins.All()) {
		return nil
	}
	if reachable, err := claimbinding.MatchesNode(pv, nil, nodeName); err != nil || reachable {
		return err
	}
	flag := "--node"
	if names := hostsOf(pv); len(names) > 0 {
		flag += " " + strings.Join(names, ", or --node ")
	}
	return fmt.Errorf("the storage of PersistentVolume %q cannot be reached from node %q, so that nothing is deleted: "+
		"if this machine was named otherwise when it was made, say %s", pv.Name, nodeName, flag)
}

// hostsOf returns the names of the nodes from which a volume can be reached, if
// they are known.
func hostsOf(pv *v1.PersistentVolume) (names []string) {
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range slices.Concat(term.MatchExpressions, term.MatchFields) {
			if (e.Key == v1.LabelHostname || e.Key == "metadata.name") && e.Operator == v1.NodeSelectorOpIn {
				names = append(names, e.Values...)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
