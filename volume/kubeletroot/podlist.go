package kubeletroot

import (
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// maxPods is how large a list of pods may be, in bytes.
const maxPods = 256 << 20

// configHash is the annotation by which a mirror pod tells the UID that the kubelet gave the
// static pod.
const configHash = "kubernetes.io/config.hash"

// listedPod is what counts of a pod.
type listedPod struct {
	Kind     string
	Metadata struct {
		UID         types.UID
		Annotations map[string]string
	}
}

// ReadPods reads the UIDs for [Config].Pods from a list of pods, or one pod, in JSON or YAML, as of
// kubectl get pods -A -o json. A static pod counts by its mirror pod. Nothing of the list
// is in an error.
func ReadPods(r io.Reader) (map[types.UID]bool, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxPods))
	if err != nil {
		return nil, err
	}
	var list struct {
		listedPod
		Items []listedPod
	}
	if yaml.Unmarshal(text, &list) != nil {
		return nil, errors.New("it is neither JSON nor YAML of pods")
	}
	switch list.Kind {
	case "Pod":
		list.Items = []listedPod{list.listedPod}
	case "List", "PodList":
	default:
		return nil, fmt.Errorf("it is no list of pods, but of the kind %q", list.Kind)
	}
	known := make(map[types.UID]bool)
	for _, p := range list.Items {
		if p.Kind != "" && p.Kind != "Pod" {
			continue // of kubectl get all
		}
		known[p.Metadata.UID] = true
		known[types.UID(p.Metadata.Annotations[configHash])] = true
	}
	return known, nil
}
