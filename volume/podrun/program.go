package podrun

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
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/standalone"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Options describe the container to run.
type Options struct {
	Pod       *v1.Pod
	Container *v1.Container // one of Pod
	// Args are the program and its arguments. Empty: the container's command and args.
	Args []string
	// RootFS is the directory that becomes the program's root. Empty: this
	// machine's root. Then the program also has this process's environment, with
	// the container's on top, and its working directory.
	RootFS string
	// Objects has the objects that the container's environment refers to.
	Objects objects.Source
	// NodeName is this node's name.
	NodeName string
	// InUserNamespace says that this process runs in a user namespace of an ordinary user.
	InUserNamespace bool
	// MissingIDs says why the user namespace has no more ids, and what to do, for
	// an *UnmappedIDsError.
	MissingIDs string
}

// Program is a prepared program, before any volume is set up.
type Program struct {
	// NotHonoured are the fields of the pod that have no effect on the program.
	NotHonoured []string
	// Skipped are the variables that cannot be set, with the reasons.
	Skipped []containerenv.Skipped

	pod        *v1.Pod
	container  *v1.Container
	rootFS     string
	args, env  []string
	dir        string
	credential *sandbox.Credential
	confinement
	// containerEnv is the container's own part of env.
	containerEnv map[string]string
}

// ErrNoCommand says that neither Options.Args nor the container name a program.
var ErrNoCommand = errors.New("the container has no command of its own")

// Prepare finds every fault of a run before anything is changed.
//
//   - If this user namespace lacks ids, the error is an *[UnmappedIDsError].
//   - With [ErrNoCommand], and where the working directory cannot be found out, the
//     program is not nil: its NotHonoured and Skipped are complete, and can be told beside
//     the error. It must not be run.
//   - With every other error the program is nil.
func Prepare(ctx context.Context, o Options) (*Program, error) {
	p := &Program{pod: o.Pod, container: o.Container, rootFS: o.RootFS}
	var err error
	if p.credential, err = credentialOf(o.Pod, o.Container, o.MissingIDs); err != nil {
		return nil, err
	}
	if p.confinement, err = confinementOf(o.Pod, o.Container, p.credential); err != nil {
		return nil, err
	}
	env, err := containerenv.Resolve(ctx, withAddresses(o.Pod), o.Container, containerenv.Sources{
		Objects: o.Objects, Allocatable: standalone.Machine{Objects: o.Objects, NodeName: types.NodeName(o.NodeName)}})
	if err != nil {
		return nil, err
	}
	p.NotHonoured, p.Skipped = notHonoured(o.Pod, o.Container, o.InUserNamespace), env.Skipped
	p.containerEnv = env.Map()
	p.env = onTop(baseEnvironment(o.RootFS, p.credential), env)
	switch {
	case len(o.Args) > 0:
		p.args = o.Args
	case len(o.Container.Command) > 0:
		p.args = env.Expand(slices.Concat(o.Container.Command, o.Container.Args))
	default:
		return p, ErrNoCommand
	}
	p.dir, err = workingDir(o.Container, o.RootFS)
	return p, err
}

// baseEnvironment is the environment below the container's own. On this machine
// it is all of the caller's. In another root it is hardly any.
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

// onTop returns the container's environment, with the variables of the base that
// it does not have itself. If one name were there twice, each program would
// choose differently.
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

// withAddresses returns the pod with this machine's addresses if its status has
// none. The program uses this machine's network, as a pod with hostNetwork does.
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

// machineAddresses returns this machine's first address of each family, or the
// loopback device's.
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

// Sandbox describes the program with the container's mounts. The pod's volumes must
// be set up at the node. The caller adds Stdin, Stdout and Stderr.
func (p *Program) Sandbox(ctx context.Context, node *volumemanager.Manager) (sandbox.Config, error) {
	mounts, devices, err := node.ContainerMounts(ctx, p.pod.UID, p.container.Name, containermounts.Options{
		Env:     p.containerEnv,
		Runtime: containermounts.RuntimeFeatures{RecursiveReadOnly: true, BindMountOptions: true},
	})
	if err != nil {
		return sandbox.Config{}, err
	}
	config := sandbox.Config{
		Root: p.rootFS, Args: p.args, Env: p.env, Dir: p.dir, Credential: p.credential,
		Capabilities: p.capabilities, NoNewPrivileges: p.noNewPrivileges,
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
