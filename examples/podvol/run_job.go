package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/volume/containerenv"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/volumemanager"
)

// program is what is known of the program before any volume is set up.
type program struct {
	args, env  []string
	dir        string
	credential *sandbox.Credential
	confinement
	// containerEnv is the container's own part of env.
	containerEnv map[string]string
}

// newJob chooses pod and container and finds out everything that could be
// wrong, before anything is touched.
func newJob(ctx context.Context, s streams, o runOptions, set *manifest.Set, pods []*v1.Pod) (*job, error) {
	pod, err := choosePod(pods)
	if err != nil {
		return nil, err
	}
	container, err := chooseContainer(pod, o.container)
	if err != nil {
		return nil, err
	}
	j := &job{set: set, pod: pod, container: container}
	if j.program.credential, err = credentialOf(pod, container, o.missingIDs); err != nil {
		return nil, err
	}
	if j.program.confinement, err = confinementOf(pod, container, j.program.credential); err != nil {
		return nil, err
	}
	env, err := containerenv.Resolve(ctx, withAddresses(pod), container, containerenv.Sources{
		Objects: set, Allocatable: machine{objects: set, node: types.NodeName(set.NodeName)}})
	if err != nil {
		return nil, err
	}
	if fields := notHonoured(pod, container, o.inside); len(fields) > 0 {
		fmt.Fprintf(s.err, "podvol: container %q asks for what podvol run does not do: %s\n", container.Name, strings.Join(fields, ", "))
	}
	for _, skipped := range env.Skipped {
		fmt.Fprintln(s.err, "podvol:", skipped)
	}
	j.program.containerEnv = env.Map()
	j.program.env = onTop(baseEnvironment(o.rootfs, j.program.credential), env)
	if j.program.args, err = commandOf(o.command, container, env); err != nil {
		return nil, err
	}
	j.program.dir, err = workingDir(container, o.rootfs)
	return j, err
}

func choosePod(pods []*v1.Pod) (*v1.Pod, error) {
	if len(pods) == 1 {
		return pods[0], nil
	}
	names := make([]string, len(pods))
	for i, p := range pods {
		names[i] = p.Namespace + "/" + p.Name
	}
	return nil, usagef("the manifests have %d pods: %s; choose one with --pod", len(pods), strings.Join(names, ", "))
}

// defaultContainer is the annotation by which a pod names its main container,
// as for kubectl exec.
const defaultContainer = "kubectl.kubernetes.io/default-container"

func chooseContainer(pod *v1.Pod, name string) (*v1.Container, error) {
	all := slices.Clone(pod.Spec.Containers)
	all = append(all, pod.Spec.InitContainers...)
	for _, e := range pod.Spec.EphemeralContainers {
		all = append(all, v1.Container(e.EphemeralContainerCommon))
	}
	if name == "" {
		name = pod.Annotations[defaultContainer]
	}
	switch {
	case len(all) == 0:
		return nil, usagef("pod %s/%s has no containers, so that there is none for a command to run in the place of; add one that mounts the volumes", pod.Namespace, pod.Name)
	case name == "" && len(pod.Spec.Containers) > 0:
		return &all[0], nil
	}
	var names []string
	for i := range all {
		if all[i].Name == name {
			return &all[i], nil
		}
		names = append(names, all[i].Name)
	}
	if name == "" {
		return nil, usagef("pod %s/%s has no containers but init or ephemeral ones; choose one with --container: %s", pod.Namespace, pod.Name, strings.Join(names, ", "))
	}
	return nil, usagef("pod %s/%s has no container %q; it has %s", pod.Namespace, pod.Name, name, strings.Join(names, ", "))
}

func commandOf(given []string, container *v1.Container, env *containerenv.Environment) ([]string, error) {
	if len(given) > 0 {
		return given, nil
	}
	if len(container.Command) == 0 {
		return nil, usagef("say what to run after --: container %q has no command of its own (it is in its image, which podvol does not look at)", container.Name)
	}
	return env.Expand(slices.Concat(container.Command, container.Args)), nil
}

// baseEnvironment is what lies under the container's own: all of the caller's
// on its own machine, hardly any in another root.
func baseEnvironment(rootfs string, credential *sandbox.Credential) []string {
	if rootfs == "" {
		return os.Environ()
	}
	home := "/root"
	if credential != nil && credential.UID != 0 {
		home = "/"
	}
	return []string{"PATH=" + sandbox.DefaultPath, "HOME=" + home, "TERM=" + cmp.Or(os.Getenv("TERM"), "dumb")}
}

// onTop returns the container's environment with those of the base's variables
// that it does not have itself: of two of one name, every program chooses
// another.
func onTop(base []string, env *containerenv.Environment) []string {
	base = slices.DeleteFunc(base, func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		_, own := env.Lookup(name)
		return own
	})
	return append(base, env.List()...)
}

func workingDir(container *v1.Container, rootfs string) (string, error) {
	if container.WorkingDir != "" || rootfs != "" {
		return cmp.Or(container.WorkingDir, "/"), nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding out the working directory: %w", err)
	}
	return dir, nil
}

func checkRootfs(dir string) error {
	if dir == "" {
		return nil
	}
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = errors.New("it is no directory")
	}
	if err != nil {
		return usagef("--rootfs %s: %w", dir, err)
	}
	return nil
}

// withAddresses returns the pod with this machine's addresses where its status
// has none: the program uses this machine's network, as a pod with hostNetwork.
func withAddresses(pod *v1.Pod) *v1.Pod {
	if pod.Status.HostIP != "" || pod.Status.PodIP != "" {
		return pod
	}
	pod = pod.DeepCopy()
	for _, ip := range machineAddresses() {
		pod.Status.HostIPs = append(pod.Status.HostIPs, v1.HostIP{IP: ip})
		pod.Status.PodIPs = append(pod.Status.PodIPs, v1.PodIP{IP: ip})
	}
	pod.Status.HostIP, pod.Status.PodIP = pod.Status.HostIPs[0].IP, pod.Status.PodIPs[0].IP
	return pod
}

// machineAddresses returns this machine's first address of each family, or that
// of the loopback device.
func machineAddresses() (addresses []string) {
	all, _ := net.InterfaceAddrs() // none is as good as an error here
	for _, isWanted := range []func(net.IP) bool{
		func(ip net.IP) bool { return ip.To4() != nil },
		func(ip net.IP) bool { return ip.To4() == nil },
	} {
		for _, a := range all {
			network, ok := a.(*net.IPNet)
			if ok && network.IP.IsGlobalUnicast() && isWanted(network.IP) {
				addresses = append(addresses, network.IP.String())
				break
			}
		}
	}
	if len(addresses) == 0 {
		return []string{"127.0.0.1"}
	}
	return addresses
}

// sandbox describes the program with the container's mounts, whose volumes are
// set up.
func (j *job) sandbox(ctx context.Context, node *node) (sandbox.Config, error) {
	mounts, devices, err := node.ContainerMounts(ctx, j.pod.UID, j.container.Name, volumemanager.ContainerOptions{
		Env:     j.program.containerEnv,
		Runtime: volumemanager.RuntimeFeatures{RecursiveReadOnly: true, BindMountOptions: true},
	})
	if err != nil {
		return sandbox.Config{}, err
	}
	config := sandbox.Config{
		Args: j.program.args, Env: j.program.env, Dir: j.program.dir, Credential: j.program.credential,
		Capabilities: j.program.capabilities, NoNewPrivileges: j.program.noNewPrivileges,
	}
	for _, m := range mounts {
		config.Mounts = append(config.Mounts, sandbox.Mount{
			Volume: m.Volume, Source: m.Source, Destination: m.Destination, File: m.File,
			ReadOnly: m.ReadOnly, RecursiveReadOnly: m.RecursiveReadOnly, Propagation: m.Propagation,
			NoExec: slices.Contains(m.BindMountOptions, "noexec"), NoSUID: slices.Contains(m.BindMountOptions, "nosuid"), NoDev: slices.Contains(m.BindMountOptions, "nodev"),
		})
	}
	config.Mounts, err = withDevices(ctx, config.Mounts, devices)
	return config, err
}
