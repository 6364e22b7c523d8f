package manifest

import (
	"fmt"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// chooseNode returns the node of the pods: the loader's, else the only one that
// the pods name, else this machine's name.
func (l Loader) chooseNode(pods []podAt) (string, error) {
	if l.NodeName != "" {
		return l.NodeName, nil
	}
	var named []string
	for _, p := range pods {
		if name := p.pod.Spec.NodeName; name != "" && !slices.Contains(named, name) {
			named = append(named, name)
		}
	}
	switch len(named) {
	case 1:
		return named[0], nil
	case 0:
		host, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("no pod names a node, and this machine's name is not known: %w; say which node it is", err)
		}
		return strings.ToLower(host), nil
	}
	slices.Sort(named)
	return "", fmt.Errorf("the pods are for several nodes (%s); say which one this is (--node NAME)", strings.Join(named, ", "))
}

// assign leaves out the pods of other nodes. The others get their node, a UID and
// the default service account, as a scheduled pod has them.
func assign(pods []podAt, node string) (here []podAt, skipped []Skipped) {
	for _, p := range pods {
		if other := p.pod.Spec.NodeName; other != "" && other != node {
			skipped = append(skipped, Skipped{
				File: p.file, Document: p.document,
				Ref:    volume.NewObjectRef("Pod", p.pod.Namespace, p.pod.Name),
				Reason: fmt.Sprintf("it is for node %q, and this is %q", other, node),
			})
			continue
		}
		p.assign(node)
		here = append(here, p)
	}
	return here, skipped
}

// checkNodeName refuses a node name that is not valid.
func checkNodeName(pod *v1.Pod) error {
	name := pod.Spec.NodeName
	if wrong := validation.IsDNS1123Subdomain(name); name != "" && len(wrong) > 0 {
		return volume.Invalid("spec.nodeName", "%q is no valid name: %s", name, strings.Join(wrong, "; "))
	}
	return nil
}

func (p podAt) assign(node string) {
	p.pod.Spec.NodeName = node
	if p.pod.UID == "" {
		p.pod.UID = objects.DerivedPodUID(node, p.owner.Kind, p.owner.Namespace, p.owner.Name, p.ordinal)
	}
	if p.pod.Spec.ServiceAccountName == "" {
		p.pod.Spec.ServiceAccountName = defaultAccount(&p.pod.Spec)
	}
}

func defaultAccount(spec *v1.PodSpec) string {
	if spec.DeprecatedServiceAccount != "" {
		return spec.DeprecatedServiceAccount
	}
	return "default"
}
