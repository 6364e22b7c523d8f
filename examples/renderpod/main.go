// Command renderpod writes the files and the environment of a pod as a tar archive to
// standard output: what an agent ships that runs pods on another machine. It mounts nothing,
// needs no root, and runs on every system.
//
//	renderpod -kubeconfig ~/.kube/config shop/web    a pod of a cluster
//	renderpod -f pod.yaml                            the pod of a manifest
//
// The archive has volumes/VOLUME/PATH, and environment/CONTAINER with NAME=value lines.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"strings"

	v1 "k8s.io/api/core/v1"
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

func run(ctx context.Context, out io.Writer, kubeconfig, file, name string) error {
	pod, from, err := open(ctx, kubeconfig, file, name)
	if err != nil {
		return err
	}
	all, err := render(ctx, pod, from)
	if err != nil {
		return err
	}
	return all.WriteTar(out)
}

// render is all that an agent needs: the files of each volume that has some, and the
// environment of each container.
func render(ctx context.Context, pod *v1.Pod, from podfiles.Sources) (*podfiles.Set, error) {
	all := &podfiles.Set{Files: make(map[string]podfiles.File)}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if !podfiles.HasFiles(v) {
			continue // an emptyDir, a claim: a directory of the agent's
		}
		// README: begin
		set, err := podfiles.Render(ctx, pod, v.Name, from, podfiles.Options{})
		// README: end
		if err != nil {
			return nil, err
		}
		for p, f := range set.Files {
			all.Files[path.Join("volumes", v.Name, p)] = f
		}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		env, err := containerenv.Resolve(ctx, pod, c, containerenv.Sources{Objects: from.Objects, Allocatable: from.Allocatable})
		if err != nil {
			return nil, err
		}
		text := strings.Join(append(env.List(), ""), "\n")
		all.Files[path.Join("environment", c.Name)] = podfiles.File{Data: []byte(text), Mode: 0o600}
	}
	return all, nil
}

// open finds the pod, and where its objects come from.
func open(ctx context.Context, kubeconfig, file, name string) (*v1.Pod, podfiles.Sources, error) {
	if kubeconfig == "" {
		return ofManifest(file)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, podfiles.Sources{}, err
	}
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, podfiles.Sources{}, err
	}
	read := cluster.Read(clientset)
	namespace, name, _ := strings.Cut(name, "/")
	pod, err := objects.Get[*v1.Pod](ctx, read, volume.NewObjectRef("Pod", namespace, name))
	return pod, podfiles.Sources{Objects: read, Tokens: clusterhost.NewTokens(clientset, clusterhost.TokensConfig{})}, err
}

// ofManifest reads a manifest. It has no tokens: no cluster issues them.
func ofManifest(file string) (*v1.Pod, podfiles.Sources, error) {
	set, err := manifest.Loader{}.Load(file)
	if err != nil {
		return nil, podfiles.Sources{}, err
	}
	if len(set.Pods()) != 1 {
		return nil, podfiles.Sources{}, fmt.Errorf("%s has %d pods, and not one", file, len(set.Pods()))
	}
	return set.Pods()[0], podfiles.Sources{Objects: set}, nil
}
