package projection_test

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/volume"
)

func TestPodFields(t *testing.T) {
	tests := map[string]string{
		"metadata.name":      "web",
		"metadata.namespace": "default",
		"metadata.uid":       "uid-of-web",
		// In the order of the keys: that of the lines is another, since '-' comes before '='.
		"metadata.labels":                          "app=\"1\"\napp-x=\"2\"",
		"metadata.annotations":                     "example.com/note=\"two\\n\\\"lines\\\"\"",
		"metadata.labels['app']":                   "1",
		"metadata.labels['nix']":                   "",
		"metadata.annotations['example.com/note']": "two\n\"lines\"",
		"metadata.annotations['nix']":              "",
	}
	for path, want := range tests {
		t.Run(path, func(t *testing.T) {
			b := newBench(t, v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
				{Path: "f", FieldRef: &v1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}}})
			b.host.Allocatable = nil // which the size is asked for
			b.pod.Labels = map[string]string{"app": "1", "app-x": "2"}
			b.pod.Annotations = map[string]string{"example.com/note": "two\n\"lines\""}
			b.setUp()
			b.wantFiles(map[string]string{"f": "0644 " + want})
			if calls := b.host.RoleCalls(); len(calls) > 0 {
				t.Errorf("roles were asked: %v", calls)
			}
		})
	}
}

func TestNoLabelsIsAnEmptyFile(t *testing.T) {
	b := newBench(t, v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
		{Path: "f", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}})
	b.setUp()
	b.wantFiles(map[string]string{"f": "0644 "})
}

func resources(pairs ...string) v1.ResourceList {
	list := v1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

func TestContainerResources(t *testing.T) {
	// The node of fakehost has 4 CPUs, 8Gi memory, 100Gi ephemeral storage.
	tests := map[string]struct {
		container, resource, divisor string
		want                         string
		asksNode                     bool
	}{
		"cpu, rounded up":           {"main", "limits.cpu", "", "2", false},
		"cpu in milli":              {"main", "limits.cpu", "1m", "1200", false},
		"cpu in ones":               {"main", "limits.cpu", "1000m", "2", false},
		"memory in bytes":           {"main", "limits.memory", "", "134217728", false},
		"memory in Mi":              {"main", "limits.memory", "1Mi", "128", false},
		"memory in Gi, rounded up":  {"main", "limits.memory", "1Gi", "1", false},
		"memory in M, rounded up":   {"main", "limits.memory", "1M", "135", false},
		"storage":                   {"main", "limits.ephemeral-storage", "1Gi", "3", false},
		"huge pages":                {"main", "limits.hugepages-2Mi", "1Mi", "4", false},
		"requested huge pages":      {"main", "requests.hugepages-2Mi", "", "4194304", false},
		"requested cpu":             {"main", "requests.cpu", "1m", "250", false},
		"a limit is a request":      {"main", "requests.memory", "1Mi", "128", false},
		"an init container":         {"init", "limits.cpu", "", "3", false},
		"no cpu limit":              {"bare", "limits.cpu", "", "4", true},
		"no memory limit":           {"bare", "limits.memory", "1Gi", "8", true},
		"no storage limit":          {"bare", "limits.ephemeral-storage", "1Gi", "100", true},
		"a zero limit":              {"zero", "limits.cpu", "1m", "4000", true},
		"no huge pages":             {"bare", "limits.hugepages-1Gi", "", "0", false},
		"nothing requested":         {"bare", "requests.cpu", "1m", "0", false},
		"no memory request":         {"bare", "requests.memory", "", "0", false},
		"no request, pod has limit": {"bare", "requests.ephemeral-storage", "", "0", false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			ref := &v1.ResourceFieldSelector{ContainerName: tc.container, Resource: tc.resource}
			if tc.divisor != "" {
				ref.Divisor = resource.MustParse(tc.divisor)
			}
			b := newBench(t, v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{{Path: "f", ResourceFieldRef: ref}}}})
			b.pod.Spec.InitContainers = []v1.Container{{Name: "init", Resources: v1.ResourceRequirements{Limits: resources("cpu", "3")}}}
			b.pod.Spec.Containers = []v1.Container{
				{Name: "bare"},
				{Name: "zero", Resources: v1.ResourceRequirements{Limits: resources("cpu", "0")}},
				{Name: "main", Resources: v1.ResourceRequirements{
					Limits:   resources("cpu", "1200m", "memory", "128Mi", "ephemeral-storage", "2500Mi", "hugepages-2Mi", "4Mi"),
					Requests: resources("cpu", "250m", "hugepages-2Mi", "4Mi")}},
			}
			if !tc.asksNode {
				b.host.Allocatable = nil // not needed
			}
			b.setUp()
			b.wantFiles(map[string]string{"f": "0644 " + tc.want})
		})
	}
}

func TestLimitsOfThePod(t *testing.T) {
	b := newBench(t, v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
		{Path: "cpu", ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.cpu"}},
		{Path: "memory", ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.memory"}}}}})
	b.pod.Spec.Resources = &v1.ResourceRequirements{Limits: resources("cpu", "2", "memory", "1k")}
	b.pod.Spec.Containers = []v1.Container{{Name: "main", Resources: v1.ResourceRequirements{Limits: resources("cpu", "1")}}}
	b.host.Allocatable = nil
	b.setUp()
	b.wantFiles(map[string]string{"cpu": "0644 1", "memory": "0644 1000"})
}

func TestUnlimitedNeedsTheNode(t *testing.T) {
	b := newBench(t, v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
		{Path: "cpu", ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.cpu"}}}}})
	b.pod.Spec.Containers = []v1.Container{{Name: "main"}}
	b.host.Allocatable = nil
	err := b.trySetUp(volume.MounterArgs{})
	if err == nil || !strings.Contains(err.Error(), "limits.cpu is not limited") || !strings.Contains(err.Error(), "AllocatableGetter") {
		t.Errorf("%v", err)
	}
}
