// Command virtualkubelet is a virtual-kubelet provider with podvol's volumes: a
// node of a cluster that runs each container as a process of this machine, in a
// mount namespace of its own where it sees its volumes at its mount paths.
//
//	virtualkubelet --kubeconfig ~/.kube/config --nodename hand
//	virtualkubelet --kubeconfig ~/.kube/config --nodename hand --hold
//
// The second one runs nothing, and mounts the volumes all the same. Both mount for
// real and take root. The node has the taint
// virtual-kubelet.io/provider=podvol:NoSchedule, which pods must tolerate.
//
// It is meant to be copied from. volumes.go is all that a provider needs to have
// the volumes of its pods mounted; node.go, provider.go and life.go say when. The
// other files are what a provider has anyway, small: container.go runs and restarts
// one container, process.go makes a process of it, status.go reports,
// leftovers.go knows the processes of an earlier start.
//
// # What it watches
//
// One informer of this node's pods, which virtual-kubelet, podvol and the provider
// share, and of all else single objects: each config map, secret, claim and volume
// that a pod here uses, once, while one does. virtual-kubelet also asks for
// informers of all secrets, config maps and services; it gets some that are never
// started, since podvol resolves the containers' environment.
//
// # What it does not do
//
// It pulls no image: a container's command must be there on the machine, whose
// root is its root, with the machine's network. It runs no init and no ephemeral
// containers, asks no probes, keeps no container from what the machine has (the
// ids of its security context and allowPrivilegeEscalation are heeded, nothing else of
// it), hands out no raw devices, and answers neither logs nor exec: what a
// container prints is in <dir>/containers/<pod's UID>/<container>.log until the
// pod is deleted. Variables of services are not set. A changed image restarts nothing.
//
// Processes end with the provider, however that ends. The next start finds the
// pods at the API server and their volumes where they were; it reports the
// containers as ended with exit code 137, and starts those anew whose restart
// policy says so. Terminal pods' volumes go at once, those of deleted pods when
// their processes have ended, and those of pods that were deleted meanwhile as soon
// as the API server has been heard of. After a restart while that is away the volumes
// stay mounted, but containers start again only when it is back.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/podvol/podvol/mount/sandbox"
)

func main() {
	sandbox.Main() // this program is started again for every container
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	c := config{log: log, pause: firstPause}
	kubeconfig := c.flags(flag.CommandLine)
	flag.Parse()
	if flag.NArg() > 0 {
		log.Error("there are no arguments but flags", "argument", flag.Arg(0))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := connectAndRun(ctx, c, *kubeconfig); err != nil {
		log.Error(err.Error())
		os.Exit(1)
	}
}

// flags are those of the command.
func (c *config) flags(set *flag.FlagSet) (kubeconfig *string) {
	set.StringVar(&c.name, "nodename", "podvol-virtualkubelet", "the node's name")
	set.StringVar(&c.dir, "dir", "/var/lib/podvol-virtualkubelet", "where volumes and the containers' output are")
	set.StringVar(&c.address, "node-ip", "127.0.0.1", "the node's address, and that of its pods")
	set.BoolVar(&c.hold, "hold", false, "mount the pods' volumes, and run nothing")
	return set.String("kubeconfig", os.Getenv("KUBECONFIG"), "how to reach the API server; empty: as a pod of the cluster")
}

// accessBy says how to reach the API server.
func accessBy(kubeconfig string) (*rest.Config, error) {
	if kubeconfig != "" {
		return clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	access, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("how to reach the API server is not known (%w): use --kubeconfig or $KUBECONFIG, or run in a pod", err)
	}
	return access, nil
}

func connectAndRun(ctx context.Context, c config, kubeconfig string) (err error) {
	if c.dir, err = filepath.Abs(c.dir); err != nil {
		return err
	}
	access, err := accessBy(kubeconfig)
	if err != nil {
		return err
	}
	access.QPS, access.Burst = 50, 100 // the kubelet's
	if c.api, err = kubernetes.NewForConfig(access); err != nil {
		return err
	}
	return run(ctx, c)
}
