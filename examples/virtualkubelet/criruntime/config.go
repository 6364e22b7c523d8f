package criruntime

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podvol/podvol/examples/virtualkubelet/podlife"
	"github.com/podvol/podvol/volume/containermounts"
)

// containerConfig is the container in the words of CRI.
func (r *Runtime) containerConfig(l podlife.Launch, ids *idMaps, image *cri.Image) (*cri.ContainerConfig, error) {
	security, err := r.security(l, ids, image)
	if err != nil {
		return nil, err
	}
	signal, err := stopSignal(l.Spec)
	if err != nil {
		return nil, err
	}
	c := l.Spec
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: c.Name, Attempt: uint32(l.Attempt)},
		Image:    &cri.ImageSpec{Image: image.Id, UserSpecifiedImage: c.Image},
		Command:  l.Env.Expand(c.Command), Args: l.Env.Expand(c.Args), WorkingDir: c.WorkingDir,
		Labels: map[string]string{podNameLabel: l.Pod.Name, podNamespaceLabel: l.Pod.Namespace, podUIDLabel: string(l.Pod.UID),
			containerNameLabel: c.Name, nodeLabel: r.Node},
		Annotations: containerAnnotations(l),
		LogPath:     logPath(c.Name, l.Attempt), Stdin: c.Stdin, StdinOnce: c.StdinOnce, Tty: c.TTY, StopSignal: signal,
		Linux: &cri.LinuxContainerConfig{SecurityContext: security, Resources: resources(l.Pod, c)},
	}
	for _, v := range l.Env.EnvVars() {
		config.Envs = append(config.Envs, &cri.KeyValue{Key: v.Name, Value: v.Value})
	}
	for _, d := range containermounts.CRIDevices(l.Devices) {
		config.Devices = append(config.Devices, &cri.Device{ContainerPath: d.ContainerPath, HostPath: d.HostPath, Permissions: d.Permissions})
	}
	if config.Mounts, err = mountsOf(l.Mounts); err != nil {
		return nil, err
	}
	config.Mounts = append(config.Mounts, r.ownMounts(l, ids)...)
	return config, nil
}

// stopSignal is the signal that stops a container; RUNTIME_DEFAULT: the image's.
func stopSignal(c *v1.Container) (cri.Signal, error) {
	if c.Lifecycle == nil || c.Lifecycle.StopSignal == nil {
		return cri.Signal_RUNTIME_DEFAULT, nil
	}
	name := string(*c.Lifecycle.StopSignal)
	number := cri.Signal_value[strings.NewReplacer("+", "PLUS", "-", "MINUS").Replace(name)] // of SIGRTMIN+1
	if number == 0 {
		return 0, fmt.Errorf("lifecycle.stopSignal: the container runtime interface has no signal %s", name)
	}
	return cri.Signal(number), nil
}

// mountsOf says a container's volumes in the words of CRI. What it cannot say is refused.
func mountsOf(mounts []containermounts.Mount) (all []*cri.Mount, err error) {
	for i, m := range containermounts.CRIMounts(mounts) {
		if len(m.MountOptions) > 0 {
			return nil, fmt.Errorf("volume %q: the container runtime interface has no mount options (%v) before Kubernetes 1.37", mounts[i].Volume, m.MountOptions)
		}
		all = append(all, &cri.Mount{ContainerPath: m.ContainerPath, HostPath: m.HostPath, Readonly: m.Readonly, SelinuxRelabel: m.SELinuxRelabel,
			Propagation: cri.MountPropagation(m.Propagation), RecursiveReadOnly: m.RecursiveReadOnly,
			UidMappings: mappings(m.UIDMappings), GidMappings: mappings(m.GIDMappings)})
	}
	return all, nil
}

func mappings(of []containermounts.CRIIDMapping) (all []*cri.IDMapping) {
	for _, m := range of {
		all = append(all, &cri.IDMapping{HostId: m.HostID, ContainerId: m.ContainerID, Length: m.Length})
	}
	return all
}

// ownMounts are the hosts file and the file for the last words, unless a volume is there.
func (r *Runtime) ownMounts(l podlife.Launch, ids *idMaps) (all []*cri.Mount) {
	add := func(path, file string) {
		if slices.ContainsFunc(l.Mounts, func(m containermounts.Mount) bool { return m.Destination == path }) {
			return
		}
		own := &cri.Mount{ContainerPath: path, HostPath: file, SelinuxRelabel: true}
		if ids != nil {
			own.UidMappings, own.GidMappings = inCRI(ids.UIDs), inCRI(ids.GIDs)
		}
		all = append(all, own)
	}
	add("/etc/hosts", r.hostsFile(l.Pod.UID))
	add(messagePath(l.Spec), r.messageFile(l.Pod.UID, l.Spec.Name, l.Attempt))
	return all
}

// messagePath is where a container leaves its last words.
func messagePath(c *v1.Container) string {
	return cmp.Or(c.TerminationMessagePath, v1.TerminationMessagePathDefault)
}

// resources are a container's limits, with the kubelet's arithmetic.
func resources(pod *v1.Pod, c *v1.Container) *cri.LinuxContainerResources {
	const period, leastShares, leastQuota = 100_000, 2, 1000
	cpu, limit := c.Resources.Requests.Cpu(), c.Resources.Limits.Cpu()
	if _, asked := c.Resources.Requests[v1.ResourceCPU]; !asked {
		cpu = limit
	}
	r := &cri.LinuxContainerResources{CpuShares: max(leastShares, cpu.MilliValue()*1024/1000), MemoryLimitInBytes: c.Resources.Limits.Memory().Value(), OomScoreAdj: oomScore(pod)}
	if limit.MilliValue() > 0 {
		r.CpuPeriod, r.CpuQuota = period, max(leastQuota, limit.MilliValue()*period/1000)
	}
	return r
}

// oomScore says whose containers are killed first when memory is short: like the kubelet's,
// without the shares among burstable pods.
func oomScore(pod *v1.Pod) int64 {
	switch podlife.QOSClass(pod) {
	case v1.PodQOSGuaranteed:
		return -997
	case v1.PodQOSBurstable:
		return 999
	}
	return 1000
}
