// Command ownplugin mounts a volume with a plugin that is not podvol's: a tar
// file, shown to a pod read-only.
//
//	ownplugin --fake site.tar    try it, without privilege
//	ownplugin site.tar           mount for real
//
// It is meant to be copied: archive.go is the plugin, unpack.go has the part that is special
// about it, ownplugin_test.go proves that it keeps the contract of package
// volume, and this file registers it next to the built-in ones.
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

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/removetree"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/volumemanager"
)

func main() {
	fake := flag.Bool("fake", false, "mount nothing for real")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: ownplugin [--fake] FILE.tar")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, flag.Arg(0), *fake); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run shows the archive to a pod of a node that exists as long as the call.
func run(ctx context.Context, out io.Writer, archivePath string, fake bool) error {
	path, err := filepath.Abs(archivePath)
	if err != nil {
		return err
	}
	root, err := os.MkdirTemp("", "ownplugin-")
	if err != nil {
		return err
	}
	mounter := mount.Interface(host.New(host.Config{}))
	if fake {
		f := fakemount.New()
		defer f.Close()
		mounter = f
	}
	// README: begin
	node, err := volumemanager.New(volumemanager.Config{
		RootDir: root, NodeName: "node1", Objects: objects.NewStore(), Mounter: mounter,
		Plugins: append(plugins.All(), newArchive()), // this is all that registering takes
	})
	// README: end
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- node.Run(running) }()
	err = show(ctx, out, node, pod(path))
	stop()
	if err = errors.Join(err, <-done); err != nil {
		return fmt.Errorf("%w\n%s is kept for you to look at", err, root)
	}
	return removetree.Remove(context.WithoutCancel(ctx), filepath.Dir(root), filepath.Base(root)) // every volume is torn down; never into a mount
}

func pod(archivePath string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "11111111-2222-3333-4444-555555555555"},
		Spec: v1.PodSpec{NodeName: "node1", Volumes: []v1.Volume{{
			Name: "site",
			VolumeSource: v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{
				Driver: archiveName, Options: map[string]string{"path": archivePath},
			}},
		}}},
	}
}

// show sets the pod's volumes up, prints where they are and what is in them,
// and tears them down.
func show(ctx context.Context, out io.Writer, node *volumemanager.Manager, pod *v1.Pod) error {
	volumes, err := node.SetUpPod(ctx, pod)
	for _, v := range volumes.Volumes {
		fmt.Fprintf(out, "%s is %s: %s at %s\n", v.Volume, v.State, v.Source, v.Path)
		if entries, err := os.ReadDir(v.Path); err == nil {
			for _, e := range entries {
				fmt.Fprintf(out, "  %s\n", e.Name())
			}
		}
	}
	return errors.Join(err, node.TearDownPod(context.WithoutCancel(ctx), pod.UID))
}
