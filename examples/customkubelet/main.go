// Command customkubelet is the smallest agent that keeps pods' volumes with
// podvol without a cluster: it takes pods from a manifest and runs pretended
// containers. examples/virtualkubelet is one of a cluster, with real ones.
//
//	customkubelet --fake testdata/redis-nfs.yaml    try it, without privilege
//	customkubelet testdata/redis-nfs.yaml           mount for real
//
// It is meant to be copied. provider.go is what an agent adds to its own code:
// CreatePod declares a pod and waits for its volumes, UpdatePod declares it
// again, DeletePod withdraws it. runtime.go pretends to be a container runtime;
// the two methods in which it tells podvol whose containers are gone are all
// that podvol wants to know of a real one. This file puts the two together, and
// walks the pods of a manifest through their life.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/removetree"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/localtoken"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/volumemanager"
)

func main() {
	fake := flag.Bool("fake", false, "mount nothing for real")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: customkubelet [--fake] MANIFEST")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, flag.Arg(0), *fake); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run is the life of a node, below a root directory of its own.
func run(ctx context.Context, out io.Writer, path string, fake bool) error {
	manifests, err := manifest.Load(path)
	if err != nil {
		return err
	}
	root, err := os.MkdirTemp("", "customkubelet-")
	if err != nil {
		return err
	}
	mounter := mount.Interface(host.New(host.Config{}))
	if fake {
		f := fakemount.New()
		defer f.Close()
		mounter = f
	}
	log := &log{out: out}
	runtime := newRuntime(log)
	volumes, err := newVolumes(root, manifests.NodeName, manifests, runtime, log, mounter)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- volumes.Run(running) }() // owns the root directory until stop; mounts stay
	defer volumes.Subscribe(log.volume)()
	err = lives(ctx, newProvider(volumes, runtime), manifests.Pods())
	stop()
	if err = errors.Join(err, <-done); err != nil {
		return fmt.Errorf("%w\n%s is kept for you to look at", err, root)
	}
	return removetree.Remove(context.WithoutCancel(ctx), filepath.Dir(root), filepath.Base(root)) // every volume is torn down; never into a mount
}

// newVolumes makes the volume manager. What it lacks is missed only by those who
// need it: without the node's size (Allocatable), volumes that show it fail and
// say so.
func newVolumes(root, node string, source objects.Source, containers volumemanager.PodContainers, log *log, mounter mount.Interface) (*volumemanager.Manager, error) {
	return volumemanager.New(volumemanager.Config{
		RootDir:    root,
		NodeName:   node,
		Objects:    source, // where claims, config maps and secrets are read from
		Plugins:    plugins.All(),
		Mounter:    mounter,                                                                  // leave it out to mount for real
		Containers: containers,                                                               // whose containers are gone
		Tokens:     localtoken.New(filepath.Join(volumemanager.StateDir(root), "token.key")), // in a cluster: its TokenRequest API
		Events:     log,                                                                      // what users should read in kubectl describe
	})
}

// patience is how long a pod's volumes may take here; virtual-kubelet calls
// CreatePod again after a failure, for ever.
const patience = 30 * time.Second

// lives walks pods through what virtual-kubelet would do to them.
func lives(ctx context.Context, provider *Provider, pods []*v1.Pod) error {
	for _, pod := range pods {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		err := provider.CreatePod(ctx, pod)
		if err == nil {
			changed := pod.DeepCopy()
			changed.Annotations = map[string]string{"example.com/seen": "yes"}
			err = provider.UpdatePod(ctx, changed)
		}
		if err := errors.Join(err, provider.DeletePod(context.WithoutCancel(ctx), pod)); err != nil {
			return err
		}
	}
	return nil
}
