// Command virtualkubelet is a node of a cluster with podvol's volumes. Its containers are
// those of a container runtime (CRI), or, without one, processes of this machine that see
// their volumes at their mount paths.
//
//	virtualkubelet --kubeconfig ~/.kube/config --nodename hand --runtime-endpoint unix:///run/containerd/containerd.sock
//	virtualkubelet --kubeconfig ~/.kube/config --nodename hand
//	virtualkubelet --kubeconfig ~/.kube/config --nodename hand --hold
//
// The third one runs nothing, and mounts the volumes all the same. All mount for real and
// take root. The node has the taint virtual-kubelet.io/provider=podvol:NoSchedule, which
// pods must tolerate, unless --no-taint is given.
//
// It is meant to be copied from:
//
//   - volumes.go is all that an agent needs to have the volumes of its pods mounted.
//   - Package podlife says when: it runs pods over any runtime.
//   - Package criruntime is such a runtime, and package processes is another one.
//   - Package staticpods runs the pods of a directory of manifests beside the API server's.
//   - Package kubeletapi has the kubelet's endpoints: logs, exec, attach and port-forward.
//     They are served where --tls-cert-file, --tls-private-key-file and --client-ca-file
//     are given, and only with a container runtime.
//   - Package csidrivers adds the volumes of CSI drivers (--csi).
//   - Image volumes are pulled by the node, with the pods' secrets and --registry-config.
//   - eviction.go ends pods that take more of the node's disk than they may.
//   - node.go puts them together.
//
// The node's object and its lease are kept by virtual-kubelet's node controller.
//
// # What it watches
//
// One informer of this node's pods, and of all else single objects: each config map,
// secret, claim and volume that a pod here uses, once, while one does. With --csi another
// informer has the CSIDriver objects.
//
// # What it does not do
//
// A changed image restarts nothing. Resources of running containers are not changed: the pod
// has the condition PodResizePending, with the reason Infeasible, and an event. An image that
// is present may be used by all pods. What package criruntime refuses, it says.
// Without a runtime there are neither images nor init containers, and a container is not
// kept from what the machine has: the ids of its security context and
// allowPrivilegeEscalation are heeded, nothing else of it.
//
// # In place of a kubelet
//
// With --adopt it goes on with what a kubelet has left: pods in the runtime, and volumes
// below --root-dir. With --cgroup-driver a kubelet can take its pods over in turn. The page
// examples/virtualkubelet/HANDOVER.md has both.
//
// # Restarts
//
// Containers of a runtime go on without this program, and the next start goes on with
// them. Processes end with it, however that ends: the next start reports them as ended
// with exit code 137, and starts those anew whose restart policy says so. Volumes stay
// where they are in both cases. Those of pods that were deleted meanwhile go as soon as
// the API server has been heard of. While that is away after a restart, the volumes stay
// mounted, but nothing is started.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/podvol/podvol/mount/sandbox"
)

func main() {
	sandbox.Main() // this program is started again for every container
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	c := config{log: log, pause: 10 * time.Second}
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
	set.StringVar(&c.endpoint, "runtime-endpoint", "", "the socket of a container runtime (CRI), such as unix:///run/containerd/containerd.sock; empty: containers are processes")
	set.BoolVar(&c.hostNetwork, "host-network", false, "all pods have the node's network, also those that do not ask for it")
	set.Func("cluster-dns", "an address of the cluster's name server, for pods that ask for it; may be repeated", func(ip string) error {
		c.clusterDNS = append(c.clusterDNS, ip)
		return nil
	})
	set.StringVar(&c.clusterDomain, "cluster-domain", "cluster.local", "what the names of the cluster's services end with")
	set.StringVar(&c.manifests, "pod-manifest-path", "", "a directory with manifests of static pods, which the node runs by itself; empty: none")
	set.StringVar(&c.rootDir, "root-dir", "", "the root directory of the volumes; empty: below --dir")
	set.BoolVar(&c.adopt, "adopt", false, "take the node over from a kubelet that does not run any more: the pods that it has left in the runtime, and the volumes below --root-dir")
	set.BoolVar(&c.csi, "csi", false, "mount the volumes of CSI drivers, which register themselves below plugins_registry of the root directory")
	set.StringVar(&c.images.DockerConfig, "registry-config", "", "a file with the node's credentials for registries, such as /root/.docker/config.json, by which image volumes are pulled; empty: the pods' own secrets alone")
	set.Func("insecure-registry", "the `host` or host:port of a registry that image volumes reach without TLS; may be repeated", func(host string) error {
		c.images.PlainHTTP = append(c.images.PlainHTTP, host)
		return nil
	})
	set.StringVar(&c.cgroupDriver, "cgroup-driver", "", "the driver of a kubelet that may take the node back, cgroupfs or systemd: pods are in its cgroups; empty: they are where the runtime puts them")
	set.StringVar(&c.certFile, "tls-cert-file", "", "the certificate of the kubelet's endpoints (logs, exec); empty: there are none")
	set.StringVar(&c.keyFile, "tls-private-key-file", "", "the key of that certificate")
	set.StringVar(&c.clientCAFile, "client-ca-file", "", "the authority of the certificates that callers of the endpoints show")
	set.IntVar(&c.port, "port", 10250, "the port of the endpoints")
	set.Func("container-log-max-size", "the `size` from which on a container's log is rotated; 10Mi unless it is given", func(text string) error {
		size, err := resource.ParseQuantity(text)
		if err == nil && size.Value() <= 0 {
			err = errors.New("it must be more than 0")
		}
		c.logMaxSize = size.Value()
		return err
	})
	set.Func("container-log-max-files", "how many files a container's log has at most; 5 unless it is given", func(text string) (err error) {
		c.logMaxFiles, err = strconv.Atoi(text)
		if err == nil && c.logMaxFiles < 2 {
			err = errors.New("it must be 2 at least")
		}
		return err
	})
	set.BoolVar(&c.noTaint, "no-taint", false, "the node takes all pods, not only those that tolerate its taint")
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

// asKubelet sets how fast a kubelet asks, and where warnings go.
func asKubelet(access *rest.Config, log *slog.Logger) {
	access.QPS, access.Burst = 50, 100
	access.WarningHandler = warnings{log}
}

func connectAndRun(ctx context.Context, c config, kubeconfig string) (err error) {
	if c.dir, err = filepath.Abs(c.dir); err != nil {
		return err
	}
	access, err := accessBy(kubeconfig)
	if err != nil {
		return err
	}
	asKubelet(access, c.log)
	if c.api, err = kubernetes.NewForConfig(access); err != nil {
		return err
	}
	return run(ctx, c)
}
