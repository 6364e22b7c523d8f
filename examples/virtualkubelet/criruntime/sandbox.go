package criruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podvol/podvol/examples/virtualkubelet/podlife"
)

// StartPod returns the pod's sandbox, and makes one where none is ready. It tells of a pod
// that asks for the cluster's name server, and gets the node's.
func (r *Runtime) StartPod(ctx context.Context, pod *v1.Pod) (podlife.Shared, error) {
	if r.Tell != nil && wantsClusterDNS(pod) && len(r.ClusterDNS) == 0 {
		r.Tell(pod, v1.EventTypeWarning, "MissingClusterDNS", fmt.Sprintf("the node was given no address of the cluster's name server (--cluster-dns): dnsPolicy %s has the node's name servers, as Default has", pod.Spec.DNSPolicy))
	}
	_, shared, err := r.ensureSandbox(ctx, pod)
	return shared, err
}

func (r *Runtime) ensureSandbox(ctx context.Context, pod *v1.Pod) (id string, shared podlife.Shared, err error) {
	unlock, err := r.pods.Lock(ctx, pod.UID)
	if err != nil {
		return "", shared, err
	}
	defer unlock()
	all, err := r.sandboxes(ctx, pod.UID)
	if err != nil {
		return "", shared, err
	}
	attempt := uint32(0)
	for _, s := range all {
		attempt = max(attempt, s.GetMetadata().GetAttempt()+1)
		if s.State == cri.PodSandboxState_SANDBOX_READY {
			id = s.Id
			break
		}
	}
	if err := os.MkdirAll(r.podDir(pod.UID), 0o750); err != nil { // which a kubelet's pod lacks
		return "", shared, err
	}
	ids, err := r.idsOf(ctx, pod)
	if err != nil {
		return "", shared, err
	}
	if id == "" {
		answer, err := r.service.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: r.sandboxConfig(pod, ids, attempt)})
		if err != nil {
			return "", shared, err
		}
		id = answer.PodSandboxId
	}
	if r.hasNodesNetwork(pod) {
		return id, shared, r.writeHosts(pod, nil)
	}
	now, err := r.service.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		return "", shared, err
	}
	network := now.GetStatus().GetNetwork()
	if network.GetIp() != "" {
		shared.IPs = append(shared.IPs, network.GetIp())
	}
	for _, more := range network.GetAdditionalIps() {
		shared.IPs = append(shared.IPs, more.Ip)
	}
	return id, shared, r.writeHosts(pod, shared.IPs)
}

// sandboxes are those of a pod, the latest first.
func (r *Runtime) sandboxes(ctx context.Context, pod types.UID) ([]*cri.PodSandbox, error) {
	answer, err := r.service.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: ofPod(pod)}})
	if err != nil {
		return nil, err
	}
	own := slices.DeleteFunc(answer.Items, func(s *cri.PodSandbox) bool { return !r.isOwn(s.Labels) })
	slices.SortFunc(own, func(a, b *cri.PodSandbox) int { return cmp.Compare(b.CreatedAt, a.CreatedAt) })
	return own, nil
}

func (r *Runtime) sandboxConfig(pod *v1.Pod, ids *idMaps, attempt uint32) *cri.PodSandboxConfig {
	config := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		Hostname:     r.hostname(pod),
		LogDirectory: r.podDir(pod.UID),
		DnsConfig:    r.dns(pod),
		Annotations:  maps.Clone(pod.Annotations), // as a kubelet's
		Labels:       map[string]string{podNameLabel: pod.Name, podNamespaceLabel: pod.Namespace, podUIDLabel: string(pod.UID), nodeLabel: r.Node},
		Linux: &cri.LinuxPodSandboxConfig{CgroupParent: r.cgroupParent(pod), SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: r.namespaces(pod, ids), Privileged: isPrivileged(pod), Seccomp: seccomp(pod, nil)}},
	}
	security := config.Linux.SecurityContext
	if s := pod.Spec.SecurityContext; s != nil {
		security.RunAsUser, security.SelinuxOptions = int64Value(s.RunAsUser), selinuxOptions(s.SELinuxOptions)
		if s.RunAsUser != nil {
			security.RunAsGroup = int64Value(s.RunAsGroup)
		}
		security.SupplementalGroups = groups(pod, nil)
		for _, sysctl := range s.Sysctls {
			if config.Linux.Sysctls == nil {
				config.Linux.Sysctls = make(map[string]string)
			}
			config.Linux.Sysctls[sysctl.Name] = sysctl.Value
		}
	}
	if r.hasNodesNetwork(pod) {
		return config
	}
	for i := range pod.Spec.Containers {
		for _, p := range pod.Spec.Containers[i].Ports {
			if p.HostPort > 0 {
				config.PortMappings = append(config.PortMappings, &cri.PortMapping{Protocol: cri.Protocol(cri.Protocol_value[string(cmp.Or(p.Protocol, v1.ProtocolTCP))]),
					ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP})
			}
		}
	}
	return config
}

func (r *Runtime) namespaces(pod *v1.Pod, ids *idMaps) *cri.NamespaceOption {
	o := &cri.NamespaceOption{Network: cri.NamespaceMode_POD, Pid: cri.NamespaceMode_CONTAINER, Ipc: cri.NamespaceMode_POD}
	if r.has.userNamespaces {
		o.UsernsOptions = ids.namespace()
	}
	if r.hasNodesNetwork(pod) {
		o.Network = cri.NamespaceMode_NODE
	}
	switch {
	case pod.Spec.HostPID:
		o.Pid = cri.NamespaceMode_NODE
	case pod.Spec.ShareProcessNamespace != nil && *pod.Spec.ShareProcessNamespace:
		o.Pid = cri.NamespaceMode_POD
	}
	if pod.Spec.HostIPC {
		o.Ipc = cri.NamespaceMode_NODE
	}
	return o
}

// StopPod ends a pod's sandboxes with all their containers, at once.
func (r *Runtime) StopPod(ctx context.Context, pod types.UID) error {
	unlock, err := r.pods.Lock(ctx, pod)
	if err != nil {
		return err
	}
	defer unlock()
	all, err := r.sandboxes(ctx, pod)
	for _, s := range all {
		_, stopped := r.service.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.Id})
		if stopped != nil && !isNotFound(stopped) {
			err = errors.Join(err, fmt.Errorf("sandbox %s: %w", s.Id, stopped))
		}
	}
	r.ends.poke()
	return err
}

// RemovePod removes a pod's sandboxes, containers, logs and other files.
func (r *Runtime) RemovePod(ctx context.Context, pod types.UID) error {
	unlock, err := r.pods.Lock(ctx, pod)
	if err != nil {
		return err
	}
	defer unlock()
	all, err := r.sandboxes(ctx, pod)
	if err != nil {
		return err
	}
	containers, err := r.containers(ctx, pod)
	if err != nil {
		return err
	}
	for _, s := range all {
		if _, err := r.service.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.Id}); err != nil && !isNotFound(err) {
			return fmt.Errorf("sandbox %s: %w", s.Id, err)
		}
	}
	if err := r.removeKubelets(pod, containers); err != nil {
		return err // and the pod's own directory has the next start try again
	}
	return r.removeFiles(pod)
}

// Appeared receives a value after the runtime has got a pod. A runtime that tells of no
// events, as containerd before 1.7, tells of none.
func (r *Runtime) Appeared() <-chan struct{} { return r.ends.pods }

// Pods lists the pods that have sandboxes or files here.
func (r *Runtime) Pods(ctx context.Context) ([]types.UID, error) {
	answer, err := r.service.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	pods, err := r.podsWithFiles()
	for _, s := range answer.Items {
		if r.isListed(s.Labels) {
			pods = append(pods, types.UID(s.GetMetadata().GetUid()))
		}
	}
	slices.Sort(pods)
	return slices.Compact(pods), err
}
