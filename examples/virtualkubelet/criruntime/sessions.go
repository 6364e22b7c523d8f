package criruntime

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podvol/podvol/examples/virtualkubelet/kubeletapi"
)

var _ kubeletapi.Runtime = (*Runtime)(nil)

// ExecURL returns where the runtime serves a command in a container.
func (r *Runtime) ExecURL(ctx context.Context, id string, command []string, s kubeletapi.Streams) (string, error) {
	answer, err := r.service.Exec(ctx, &cri.ExecRequest{ContainerId: id, Cmd: command, Tty: s.TTY, Stdin: s.In, Stdout: s.Out, Stderr: s.Err})
	return answer.GetUrl(), err
}

// AttachURL returns where the runtime serves a container's own streams.
func (r *Runtime) AttachURL(ctx context.Context, id string, s kubeletapi.Streams) (string, error) {
	answer, err := r.service.Attach(ctx, &cri.AttachRequest{ContainerId: id, Tty: s.TTY, Stdin: s.In, Stdout: s.Out, Stderr: s.Err})
	return answer.GetUrl(), err
}

// PortForwardURL returns where the runtime serves connections into a pod.
func (r *Runtime) PortForwardURL(ctx context.Context, pod types.UID) (string, error) {
	all, err := r.sandboxes(ctx, pod)
	if err != nil {
		return "", err
	}
	for _, s := range all {
		if s.State == cri.PodSandboxState_SANDBOX_READY {
			answer, err := r.service.PortForward(ctx, &cri.PortForwardRequest{PodSandboxId: s.Id})
			return answer.GetUrl(), err
		}
	}
	return "", fmt.Errorf("pod %s has no sandbox that is ready", pod)
}

// Usage returns what this node's containers use.
func (r *Runtime) Usage(ctx context.Context) (map[string]kubeletapi.Usage, error) {
	answer, err := r.service.ListContainerStats(ctx, &cri.ListContainerStatsRequest{})
	if err != nil {
		return nil, err
	}
	all := make(map[string]kubeletapi.Usage)
	for _, s := range answer.Stats {
		if !r.isOwn(s.GetAttributes().GetLabels()) {
			continue
		}
		memory, written := s.GetMemory(), s.GetWritableLayer()
		all[r.name+"://"+s.GetAttributes().GetId()] = kubeletapi.Usage{Time: time.Unix(0, s.GetCpu().GetTimestamp()),
			CPUNanoseconds: s.GetCpu().GetUsageCoreNanoSeconds().GetValue(), WorkingSet: memory.GetWorkingSetBytes().GetValue(),
			Memory: memory.GetUsageBytes().GetValue(), Resident: memory.GetRssBytes().GetValue(),
			Written: written.GetUsedBytes().GetValue(), WrittenInodes: written.GetInodesUsed().GetValue()}
	}
	return all, nil
}
