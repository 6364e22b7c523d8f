package podlife

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestQOSClass(t *testing.T) {
	list := func(cpu, memory string) v1.ResourceList {
		l := v1.ResourceList{}
		if cpu != "" {
			l[v1.ResourceCPU] = resource.MustParse(cpu)
		}
		if memory != "" {
			l[v1.ResourceMemory] = resource.MustParse(memory)
		}
		return l
	}
	ask := func(requests, limits v1.ResourceList) v1.Container {
		return v1.Container{Resources: v1.ResourceRequirements{Requests: requests, Limits: limits}}
	}
	none, full := ask(nil, nil), ask(nil, list("1", "1Gi"))
	for name, tc := range map[string]struct {
		said       v1.PodQOSClass
		init, main []v1.Container
		want       v1.PodQOSClass
	}{
		"the API server's word":       {said: v1.PodQOSBurstable, main: []v1.Container{none}, want: v1.PodQOSBurstable},
		"nothing asked for":           {main: []v1.Container{none, none}, want: v1.PodQOSBestEffort},
		"limits for both":             {main: []v1.Container{full}, want: v1.PodQOSGuaranteed},
		"requests equal to limits":    {main: []v1.Container{ask(list("1000m", "1Gi"), list("1", "1024Mi"))}, want: v1.PodQOSGuaranteed},
		"a request below the limit":   {main: []v1.Container{ask(list("1", "1Gi"), list("2", "1Gi"))}, want: v1.PodQOSBurstable},
		"no limit for memory":         {main: []v1.Container{ask(nil, list("1", ""))}, want: v1.PodQOSBurstable},
		"one container without":       {main: []v1.Container{full, none}, want: v1.PodQOSBurstable},
		"an init container without":   {init: []v1.Container{none}, main: []v1.Container{full}, want: v1.PodQOSBurstable},
		"only an init container asks": {init: []v1.Container{ask(list("1", ""), nil)}, main: []v1.Container{none}, want: v1.PodQOSBurstable},
		"a request of zero":           {main: []v1.Container{ask(list("0", ""), nil)}, want: v1.PodQOSBestEffort},
	} {
		pod := &v1.Pod{Spec: v1.PodSpec{InitContainers: tc.init, Containers: tc.main}, Status: v1.PodStatus{QOSClass: tc.said}}
		if got := QOSClass(pod); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}
