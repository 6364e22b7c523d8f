// Command renderpod writes the files and the environment of a pod as a tar archive to
// standard output: what an agent ships that runs pods on another machine. It mounts nothing,
// needs no root, and runs on every system.
//
//	renderpod -kubeconfig ~/.kube/config shop/web    a pod of a cluster
//	renderpod -f pod.yaml                            the pod of a manifest
//
// The archive has volumes/VOLUME/PATH, and environment/CONTAINER.json: a list of variables, as
// in a manifest.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/clusterhost"
	"github.com/podvol/podvol/volume/containerenv"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/podfiles"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "the cluster; then the argument is NAMESPACE/NAME")
	file := flag.String("f", "", "a manifest instead of a cluster")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, *kubeconfig, *file, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "renderpod:", err)
		os.Exit(1)
	}
}

// agent is where a pod's objects come from.
type agent struct {
	files podfiles.Sources
	env   containerenv.Sources
}

func run(ctx context.Context, out io.Writer, kubeconfig, file, name string) error {
	var pod *v1.Pod
	var a agent
	var err error
	if kubeconfig == "" {
		pod, a, err = ofManifest(file)
	} else {
		pod, a, err = ofCluster(ctx, kubeconfig, name)
	}
	if err != nil {
		return err
	}
	all, err := a.render(ctx, pod)
	if err != nil {
		return err
	}
	return all.WriteTar(out)
}

// render is all that an agent needs: the files of each volume that has some, and the
// environment of each container. Its error has everything that is missing.
func (a agent) render(ctx context.Context, pod *v1.Pod) (*podfiles.Set, error) {
	all := &podfiles.Set{}
	var faults []error
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if !podfiles.HasFiles(v) {
			continue // an emptyDir, a claim: a directory of the agent's
		}
		// README: begin
		set, err := podfiles.Render(ctx, pod, v.Name, a.files, podfiles.Options{})
		// README: end
		if err != nil {
			faults = append(faults, err)
			continue
		}
		all.Put(path.Join("volumes", v.Name), set)
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		env, err := containerenv.Resolve(ctx, pod, &c, a.env)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		text, err := json.Marshal(env.EnvVars())
		faults = append(faults, err)
		all.Put("environment", &podfiles.Set{Files: map[string]podfiles.File{c.Name + ".json": {Data: text, Mode: 0o600}}})
	}
	return all, errors.Join(faults...)
}

// ofCluster finds a pod of a cluster, and asks for all objects when they are needed.
func ofCluster(ctx context.Context, kubeconfig, name string) (*v1.Pod, agent, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, agent{}, err
	}
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, agent{}, err
	}
	namespace, name, _ := strings.Cut(name, "/")
	pod, err := objects.Get[*v1.Pod](ctx, cluster.Read(clientset), volume.NewObjectRef("Pod", namespace, name))
	if err != nil {
		return nil, agent{}, err
	}
	services, err := servicesFor(ctx, clientset, namespace)
	return pod, agentOf(clientset, pod, services), err
}

func agentOf(clientset kubernetes.Interface, pod *v1.Pod, services []v1.Service) agent {
	// README: begin
	read := cluster.Read(clientset)
	tokens := clusterhost.NewTokens(clientset, clusterhost.TokensConfig{})
	size := nodeSize{read, pod.Spec.NodeName} // only for limits that the pod does not set
	return agent{
		files: podfiles.Sources{Objects: read, Tokens: tokens, Allocatable: size},
		env:   containerenv.Sources{Objects: read, Services: services, Allocatable: size},
	}
	// README: end
}

// servicesFor returns the services whose variables a pod of the namespace has: its own, and
// the API server's.
func servicesFor(ctx context.Context, clientset kubernetes.Interface, namespace string) ([]v1.Service, error) {
	own, err := clientset.CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	api, err := clientset.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return append(own.Items, *api), nil
}

// ofManifest reads a manifest. It has no tokens: no cluster issues them.
func ofManifest(file string) (*v1.Pod, agent, error) {
	set, err := manifest.Loader{}.Load(file)
	if err != nil {
		return nil, agent{}, err
	}
	if len(set.Pods()) != 1 {
		return nil, agent{}, fmt.Errorf("%s has %d pods, and not one", file, len(set.Pods()))
	}
	pod := set.Pods()[0]
	size := nodeSize{set, pod.Spec.NodeName}
	return pod, agent{files: podfiles.Sources{Objects: set, Allocatable: size}, env: containerenv.Sources{Objects: set, Allocatable: size}}, nil
}

// nodeSize is what a pod's node has: the limit of a container without one.
type nodeSize struct {
	objects objects.Getter
	node    string
}

// GetAllocatable implements volume.AllocatableGetter.
func (s nodeSize) GetAllocatable(ctx context.Context) (v1.ResourceList, error) {
	node, err := objects.Get[*v1.Node](ctx, s.objects, volume.NewObjectRef("Node", "", s.node))
	if err != nil {
		return nil, err
	}
	return node.Status.Allocatable, nil
}
