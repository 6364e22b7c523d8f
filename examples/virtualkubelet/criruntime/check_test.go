package criruntime

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What the runtime does not offer is refused by its name; what it offers is not.
func TestCheck(t *testing.T) {
	hugepages := v1.ResourceList{v1.ResourceHugePagesPrefix + "2Mi": resource.MustParse("2Mi")}
	signal := func(s v1.Signal) *v1.Lifecycle { return &v1.Lifecycle{StopSignal: &s} }
	for name, test := range map[string]struct {
		pod     v1.PodSpec
		first   v1.Container
		refused string // part of the error; empty: the pod is taken
		knows   features
	}{
		"nothing special":               {},
		"a user namespace":              {pod: v1.PodSpec{HostUsers: new(false)}, refused: "hostUsers: false"},
		"one beside the node's network": {pod: v1.PodSpec{HostUsers: new(false), HostNetwork: true}, knows: features{userNamespaces: true, network: true}, refused: "hostUsers: false"},
		"one that it makes":             {pod: v1.PodSpec{HostUsers: new(false)}, knows: features{userNamespaces: true, network: true}},
		"the node's users":              {pod: v1.PodSpec{HostUsers: new(true)}},
		"strict groups":                 {pod: v1.PodSpec{SecurityContext: &v1.PodSecurityContext{SupplementalGroupsPolicy: new(v1.SupplementalGroupsPolicyStrict)}}, refused: "supplementalGroupsPolicy: Strict"},
		"a runtime class":               {pod: v1.PodSpec{RuntimeClassName: new("gvisor")}, refused: "runtimeClassName"},
		"another hostname":              {pod: v1.PodSpec{HostnameOverride: new("db.example")}, refused: "hostnameOverride"},
		"limits of the pod":             {pod: v1.PodSpec{Resources: &v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}}}, refused: "cannot run on this node: resources"},
		"claims of devices":             {pod: v1.PodSpec{ResourceClaims: []v1.PodResourceClaim{{Name: "gpu"}}}, refused: "resourceClaims"},
		"another system":                {pod: v1.PodSpec{OS: &v1.PodOS{Name: v1.Windows}}, refused: "os"},
		"restart rules":                 {first: v1.Container{RestartPolicyRules: []v1.ContainerRestartRule{{}}}, refused: "container first: restartPolicyRules"},
		"limited hugepages":             {first: v1.Container{Resources: v1.ResourceRequirements{Limits: hugepages}}, refused: "container first: hugepages"},
		"requested hugepages":           {first: v1.Container{Resources: v1.ResourceRequirements{Requests: hugepages}}, refused: "container first: hugepages"},
		"limits of a container":         {first: v1.Container{Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}}}},
		"a stop signal":                 {first: v1.Container{Lifecycle: signal(v1.SIGUSR1)}},
		"no signal of CRI's":            {first: v1.Container{Lifecycle: signal("SIGNONE")}, refused: "container first: lifecycle.stopSignal"},
		"the default's name":            {first: v1.Container{Lifecycle: signal("RUNTIME_DEFAULT")}, refused: "container first: lifecycle.stopSignal"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.knows == (features{}) {
				test.knows.network = true
			}
			r := &Runtime{has: test.knows, Config: Config{RootDir: "/root"}}
			test.first.Name = "first"
			lists := []*[]v1.Container{&test.pod.InitContainers, &test.pod.Containers}
			for _, list := range lists {
				pod := &v1.Pod{Spec: *test.pod.DeepCopy()}
				pod.Spec.Containers = []v1.Container{{Name: "other"}}
				if list == lists[0] {
					pod.Spec.InitContainers = []v1.Container{test.first}
				} else {
					pod.Spec.Containers = append(pod.Spec.Containers, test.first)
				}
				switch err := r.Check(pod); {
				case test.refused == "" && err != nil:
					t.Errorf("refused: %v", err)
				case test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused)):
					t.Errorf("got %v, want %q", err, test.refused)
				}
			}
		})
	}
}

// Every kind of name that the API has for a signal is one of CRI's.
func TestStopSignals(t *testing.T) {
	for name, want := range map[v1.Signal]cri.Signal{
		v1.SIGTERM: cri.Signal_SIGTERM, v1.SIGUSR1: cri.Signal_SIGUSR1, v1.SIGRTMIN: cri.Signal_SIGRTMIN,
		v1.SIGRTMINPLUS15: cri.Signal_SIGRTMINPLUS15, v1.SIGRTMAXMINUS3: cri.Signal_SIGRTMAXMINUS3,
	} {
		if got, err := stopSignal(&v1.Container{Lifecycle: &v1.Lifecycle{StopSignal: &name}}); got != want || err != nil {
			t.Errorf("%s is %v, %v", name, got, err)
		}
	}
	if got, err := stopSignal(&v1.Container{Lifecycle: &v1.Lifecycle{}}); got != cri.Signal_RUNTIME_DEFAULT || err != nil {
		t.Errorf("none is %v, %v", got, err)
	}
}

// sandboxes is a runtime's pods, which have their network at once.
type sandboxes struct{ cri.RuntimeServiceClient }

func (sandboxes) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest, ...grpc.CallOption) (*cri.ListPodSandboxResponse, error) {
	return &cri.ListPodSandboxResponse{}, nil
}

func (sandboxes) RunPodSandbox(context.Context, *cri.RunPodSandboxRequest, ...grpc.CallOption) (*cri.RunPodSandboxResponse, error) {
	return &cri.RunPodSandboxResponse{PodSandboxId: "id"}, nil
}

func (sandboxes) PodSandboxStatus(context.Context, *cri.PodSandboxStatusRequest, ...grpc.CallOption) (*cri.PodSandboxStatusResponse, error) {
	return &cri.PodSandboxStatusResponse{}, nil
}

// A pod that gets the node's name servers in place of the cluster's is told so.
func TestMissingClusterDNS(t *testing.T) {
	for name, test := range map[string]struct {
		policy  v1.DNSPolicy
		host    bool
		servers []string
		told    bool
	}{
		"the cluster's, which is not known":     {v1.DNSClusterFirst, false, nil, true},
		"the cluster's":                         {v1.DNSClusterFirst, false, []string{"10.0.0.10"}, false},
		"the cluster's, on the node's network":  {v1.DNSClusterFirst, true, nil, false},
		"the same, and the cluster's is wanted": {v1.DNSClusterFirstWithHostNet, true, nil, true},
		"the node's":                            {v1.DNSDefault, false, nil, false},
		"its own":                               {v1.DNSNone, false, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			var told []string
			r := &Runtime{service: sandboxes{}, Config: Config{Dir: t.TempDir(), ClusterDNS: test.servers,
				Tell: func(_ *v1.Pod, eventType, reason, _ string) { told = append(told, eventType+" "+reason) }}}
			pod := &v1.Pod{Spec: v1.PodSpec{DNSPolicy: test.policy, HostNetwork: test.host}}
			pod.Name, pod.UID = "web", "a-b"
			if _, err := r.StartPod(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(told, ", "); test.told != (got == "Warning MissingClusterDNS") || !test.told && got != "" {
				t.Errorf("events %q", got)
			}
			r.Tell = nil
			if _, err := r.StartPod(t.Context(), pod); err != nil {
				t.Error(err)
			}
		})
	}
}
