package criruntime

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// measured is a runtime with three containers: this node's, another node's, and a kubelet's.
type measured struct{ cri.RuntimeServiceClient }

func (measured) ListContainerStats(context.Context, *cri.ListContainerStatsRequest, ...grpc.CallOption) (*cri.ListContainerStatsResponse, error) {
	of := func(id, node string) *cri.ContainerStats {
		s := &cri.ContainerStats{Attributes: &cri.ContainerAttributes{Id: id, Labels: map[string]string{podUIDLabel: "uid"}},
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
