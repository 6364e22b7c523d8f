package criruntime

import (
	"context"
	"maps"
	"strings"
	"testing"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podvol/podvol/util/testenv/testtool"
)

// measured is a runtime with three containers: this node's, another node's, and a kubelet's.
type measured struct{ cri.RuntimeServiceClient }

func (measured) ListContainerStats(context.Context, *cri.ListContainerStatsRequest, ...grpc.CallOption) (*cri.ListContainerStatsResponse, error) {
	of := func(id, node string) *cri.ContainerStats {
		s := &cri.ContainerStats{Attributes: &cri.ContainerAttributes{Id: id, Labels: map[string]string{podUIDLabel: "uid", containerNameLabel: "main"}},
			Cpu: &cri.CpuUsage{UsageCoreNanoSeconds: &cri.UInt64Value{Value: 5}}}
		if node != "" {
			s.Attributes.Labels[nodeLabel] = node
		}
		return s
	}
	written := of("a", "node1")
	written.WritableLayer = &cri.FilesystemUsage{UsedBytes: &cri.UInt64Value{Value: 4096}, InodesUsed: &cri.UInt64Value{Value: 2}}
	return &cri.ListContainerStatsResponse{Stats: []*cri.ContainerStats{written, of("b", "node2"), of("c", "")}}, nil
}

// What a kubelet has left running has figures too, and what is another node's has none here.
func TestUsage(t *testing.T) {
	r := &Runtime{Config: Config{Node: "node1"}, service: measured{}, name: "containerd"}
	all, err := r.Usage(t.Context())
	a, has := all["containerd://a"]
	if err != nil || len(all) != 2 || !has || a.CPUNanoseconds != 5 || a.Written != 4096 || a.WrittenInodes != 2 {
		t.Errorf("got %v, %v", all, err)
	}
	if c, has := all["containerd://c"]; !has || c.CPUNanoseconds != 5 || c.Written != 0 {
		t.Errorf("a kubelet's uses %v", c)
	}
}

// What a pod's containers take of the disk is what they have written, and their logs.
func TestDiskUsage(t *testing.T) {
	r := &Runtime{Config: Config{Node: "node1", Dir: t.TempDir()}, service: measured{}, name: "containerd"}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid"}}
	got, err := r.DiskUsage(t.Context(), pod)
	if want := map[string]int64{"main": 4096}; err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	testtool.WriteFile(t, strings.Repeat("x", 10_000), testtool.MkdirAll(t, r.Dir, "uid", "main"), "0.log")
	if got, err := r.DiskUsage(t.Context(), pod); err != nil || got["main"] < 4096+10_000 {
		t.Errorf("with a log: %v, %v", got, err)
	}
	pod.UID = "another"
	if got, err := r.DiskUsage(t.Context(), pod); err != nil || len(got) != 0 {
		t.Errorf("another pod's: %v, %v", got, err)
	}
}
