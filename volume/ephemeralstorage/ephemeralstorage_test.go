package ephemeralstorage_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/diskusage"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/ephemeralstorage"
	"github.com/podvol/podvol/volume/meter"
)

func limited(limit string) v1.Container {
	c := v1.Container{Name: "web"}
	if limit != "" {
		c.Resources.Limits = v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse(limit)}
	}
	return c
}

func sidecar(limit string) v1.Container {
	c := limited(limit)
	c.RestartPolicy = new(v1.ContainerRestartPolicyAlways)
	return c
}

func newPod(containers ...v1.Container) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid"}, Spec: v1.PodSpec{Containers: containers}}
}

func emptyDir(name string, medium v1.StorageMedium, limit string) v1.Volume {
	source := &v1.EmptyDirVolumeSource{Medium: medium}
	if limit != "" {
		source.SizeLimit = new(resource.MustParse(limit))
	}
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{EmptyDir: source}}
}

// Limits are those that k8s.io/component-helpers' PodLimits returns.
func TestLimit(t *testing.T) {
	for name, test := range map[string]struct {
		init, main []v1.Container
		overhead   string
		want       string
	}{
		"none":                              {main: []v1.Container{limited("")}},
		"a sum":                             {main: []v1.Container{limited("1Gi"), limited("512Mi")}, want: "1536Mi"},
		"one without":                       {main: []v1.Container{limited("1Gi"), limited("")}, want: "1Gi"},
		"zero is one":                       {main: []v1.Container{limited("0")}, want: "0"},
		"an init container is larger":       {init: []v1.Container{limited("3Gi"), limited("2Gi")}, main: []v1.Container{limited("1Gi")}, want: "3Gi"},
		"an init container is smaller":      {init: []v1.Container{limited("1Gi")}, main: []v1.Container{limited("2Gi")}, want: "2Gi"},
		"only an init container":            {init: []v1.Container{limited("1Gi")}, main: []v1.Container{limited("")}, want: "1Gi"},
		"sidecars are beside containers":    {init: []v1.Container{sidecar("1Gi")}, main: []v1.Container{limited("2Gi")}, want: "3Gi"},
		"sidecars are beside later ones":    {init: []v1.Container{sidecar("1Gi"), limited("4Gi")}, main: []v1.Container{limited("2Gi")}, want: "5Gi"},
		"sidecars are not beside the first": {init: []v1.Container{limited("4Gi"), sidecar("1Gi")}, main: []v1.Container{limited("2Gi")}, want: "4Gi"},
		"overhead":                          {main: []v1.Container{limited("1Gi")}, overhead: "1Gi", want: "2Gi"},
		"nothing but overhead":              {main: []v1.Container{limited("")}, overhead: "1Gi"},
	} {
		pod := newPod(test.main...)
		pod.Spec.InitContainers = test.init
		if test.overhead != "" {
			pod.Spec.Overhead = v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse(test.overhead)}
		}
		before := pod.DeepCopy()
		got, ok := ephemeralstorage.Limit(pod)
		if ok != (test.want != "") || ok && got.Cmp(resource.MustParse(test.want)) != 0 {
			t.Errorf("%s: %v, %v, want %s", name, got.String(), ok, test.want)
		}
		if diff := cmp.Diff(before, pod); diff != "" {
			t.Errorf("%s: the pod was changed: %s", name, diff)
		}
	}
}

func TestExceeded(t *testing.T) {
	const mebi = 1 << 20
	pod := newPod(limited("4Mi"))
	pod.Spec.Volumes = []v1.Volume{emptyDir("small", "", "1Mi"), emptyDir("none", "", "0"), emptyDir("memory", v1.StorageMediumMemory, "1Mi"), emptyDir("any", "", "")}
	for name, test := range map[string]struct {
		volumes, containers map[string]int64
		want                []string
	}{
		"nothing":  {},
		"as much":  {volumes: map[string]int64{"small": mebi, "any": 3 * mebi}},
		"a volume": {volumes: map[string]int64{"small": mebi + 1}, want: []string{`Usage of EmptyDir volume "small" exceeds the limit "1Mi".`}},
		"the pod": {volumes: map[string]int64{"any": 4 * mebi}, containers: map[string]int64{"web": 1},
			want: []string{"Pod ephemeral local storage usage exceeds the total limit of containers 4Mi."}},
		"a container": {containers: map[string]int64{"web": 5 * mebi, "other": 0}, want: []string{
			"Pod ephemeral local storage usage exceeds the total limit of containers 4Mi.", `Container web exceeded its local ephemeral storage limit "4Mi".`}},
		"volumes without a limit of their own": {volumes: map[string]int64{"none": 2 * mebi, "memory": 2 * mebi}},
	} {
		exceeded := ephemeralstorage.Exceeded(pod, ephemeralstorage.Usage{Volumes: test.volumes, Containers: test.containers})
		var got []string
		if exceeded != nil {
			for _, e := range exceeded.Limits {
				got = append(got, e.String())
			}
			if exceeded.Message() != got[0] || exceeded.UID != pod.UID || exceeded.Pod.String() != "ns/web" {
				t.Errorf("%s: %+v", name, exceeded)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// node has what volumes and containers take.
type node struct {
	mu         sync.Mutex
	volumes    map[string]int64
	containers map[string]int64
	failures   map[string]error
	asked      []string
}

func (n *node) Metrics(_ context.Context, pod types.UID, name string) (*volume.Metrics, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, fmt.Sprintf("%s/%s", pod, name))
	used, known := n.volumes[name]
	if !known {
		return nil, n.failures[name]
	}
	return &volume.Metrics{Used: resource.NewQuantity(used, resource.BinarySI)}, n.failures[name]
}

func (n *node) DiskUsage(context.Context, *v1.Pod) (map[string]int64, error) {
	return n.containers, n.failures["containers"]
}

func (n *node) set(name string, bytes int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.volumes[name] = bytes
}

// Only what is on the node's disk, and certain, counts.
func TestUsage(t *testing.T) {
	pod := newPod(limited("1Gi"))
	sources := map[string]v1.VolumeSource{
		"config": {ConfigMap: &v1.ConfigMapVolumeSource{}}, "secret": {Secret: &v1.SecretVolumeSource{}}, "labels": {DownwardAPI: &v1.DownwardAPIVolumeSource{}},
		"token": {Projected: &v1.ProjectedVolumeSource{}}, "host": {HostPath: &v1.HostPathVolumeSource{}}, "claim": {PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}},
		"repository": {GitRepo: &v1.GitRepoVolumeSource{}}, "image": {Image: &v1.ImageVolumeSource{}},
		"disk": emptyDir("", "", "").VolumeSource, "memory": emptyDir("", v1.StorageMediumMemory, "").VolumeSource,
		"old": emptyDir("", "", "").VolumeSource, "large": emptyDir("", "", "").VolumeSource, "unmounted": emptyDir("", "", "").VolumeSource,
	}
	lost := errors.New("no answer")
	n := &node{volumes: map[string]int64{}, containers: map[string]int64{"web": 1000}, failures: map[string]error{
		"old": &meter.Error{Measured: metav1.Now(), Err: lost}, "large": &meter.Error{AtLeast: true, Err: &diskusage.BudgetError{Budget: diskusage.Budget{Inodes: 1}}},
		"unmounted": mount.ErrNotMounted, "containers": lost,
	}}
	for name, source := range sources {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
		if name != "unmounted" {
			n.volumes[name] = 1
		}
	}
	for _, filesOnDisk := range []bool{false, true} {
		want := map[string]int64{"config": 1, "repository": 1, "disk": 1, "old": 0, "large": 1, "unmounted": 0}
		total := int64(1004)
		if filesOnDisk {
			want["secret"], want["labels"], want["token"], total = 1, 1, 1, 1007
		}
		got := ephemeralstorage.New(ephemeralstorage.Config{Volumes: n, Containers: n, FilesOnDisk: filesOnDisk}).Usage(t.Context(), pod)
		if diff := cmp.Diff(want, got.Volumes); diff != "" || got.Total() != total {
			t.Errorf("%s, in all %d, want %d", diff, got.Total(), total)
		}
		if err := got.Unknown; !errors.Is(err, lost) || !errors.Is(err, mount.ErrNotMounted) {
			t.Errorf("unknown: %v", err)
		}
	}
}

func TestCheck(t *testing.T) {
	n := &node{volumes: map[string]int64{"cache": 2 << 20}}
	m := ephemeralstorage.New(ephemeralstorage.Config{Volumes: n})
	pod := newPod(limited(""))
	pod.Spec.Volumes = []v1.Volume{emptyDir("cache", "", "")}
	if e := m.Check(t.Context(), pod); e != nil || len(n.asked) != 0 {
		t.Errorf("a pod without a limit: %+v, asked for %q", e, n.asked)
	}
	pod.Spec.Volumes = []v1.Volume{emptyDir("cache", "", "1Mi")}
	if e := m.Check(t.Context(), pod); e == nil || e.Usage.Total() != 2<<20 {
		t.Errorf("it exceeds its limit: %+v", e)
	}
}

// A pod is evicted when it exceeds its limit, and again as long as it is there and does. One
// that cannot be measured delays the others for its timeout.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{volumes: map[string]int64{"cache": 1}}
		pod := newPod(limited(""))
		pod.Spec.Volumes = []v1.Volume{emptyDir("cache", "", "1Mi")}
		stuck := newPod(limited("1Gi"))
		stuck.UID, stuck.Spec.Volumes = "stuck", []v1.Volume{emptyDir("silent", "", "")}
		var evicted []string
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		began := time.Now()
		go func() {
			defer close(ended)
			ephemeralstorage.New(ephemeralstorage.Config{Volumes: silent{n}, Timeout: 5 * time.Second}).Run(ctx, time.Minute,
				func() []*v1.Pod { return []*v1.Pod{stuck, pod} },
				func(pod *v1.Pod, e *ephemeralstorage.Eviction) {
					evicted = append(evicted, fmt.Sprintf("%v %s", time.Since(began), e.Message()))
				})
		}()
		synctest.Wait()
		time.Sleep(30 * time.Second)
		n.set("cache", 2<<20)
		time.Sleep(2*time.Minute + 30*time.Second)
		stop()
		<-ended
		want := []string{"1m5s", "2m10s"}
		if len(evicted) != len(want) {
			t.Fatalf("evicted %q", evicted)
		}
		for i, at := range want {
			if !strings.HasPrefix(evicted[i], at+" Usage of EmptyDir volume") {
				t.Errorf("evicted %q, want it after %s", evicted[i], at)
			}
		}
	})
}

// silent never answers for a volume.
type silent struct{ *node }

func (s silent) Metrics(ctx context.Context, pod types.UID, name string) (*volume.Metrics, error) {
	if name == "silent" {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return s.node.Metrics(ctx, pod, name)
}

// slow takes its time for each volume, and ends with its context.
type slow struct {
	*node
	takes time.Duration
}

func (s slow) Metrics(ctx context.Context, pod types.UID, name string) (*volume.Metrics, error) {
	select {
	case <-time.After(s.takes):
		return s.node.Metrics(ctx, pod, name)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// A pod whose files take long to count is evicted all the same, and counted half of the time at most.
func TestRunWithManyFiles(t *testing.T) {
	const walk = meter.MaxTreeTime
	synctest.Test(t, func(t *testing.T) {
		n := &node{volumes: map[string]int64{"cache": 2 << 20}}
		pod := newPod(limited(""))
		pod.Spec.Volumes = []v1.Volume{emptyDir("cache", "", "1Mi")}
		ctx, stop := context.WithTimeout(t.Context(), 16*walk)
		defer stop()
		evictions := 0
		ephemeralstorage.New(ephemeralstorage.Config{Volumes: slow{n, 2 * walk}}).Run(ctx, 0,
			func() []*v1.Pod { return []*v1.Pod{pod} }, func(*v1.Pod, *ephemeralstorage.Eviction) { evictions++ })
		if evictions != 4 {
			t.Errorf("evicted %d times in eight times what it takes to count its files, want 4", evictions)
		}
	})
}
