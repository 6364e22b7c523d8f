// Command controller runs podvol's controllers in a cluster. Its first modes are the
// PersistentVolume controller: storage classes get directories on an NFS server for their
// claims.
//
//	controller --kubeconfig ~/.kube/config
//	controller --leader-elect --mode provisioner      in a pod, see testdata/controller.yaml
//
// In its mode "provisioner", the default, it works beside kube-controller-manager,
// which binds claims: it makes and deletes volumes of classes whose provisioner is
// --provisioner. In its mode "everything" it is the only PersistentVolume controller
// of the cluster, and kube-controller-manager must be started without its own ones;
// go doc ./volume/persistentvolume says which. Claims of in-tree classes whose volumes CSI drivers
// have taken over, such as kubernetes.io/gce-pd, are given to these drivers' provisioners.
//
// In its mode "attach-detach" it attaches volumes to the nodes of their pods, and detaches
// them (testdata/attach-detach.yaml): by VolumeAttachments those of CSI drivers, whose
// external-attachers do the work, and itself those of iSCSI. kube-controller-manager must be
// started with --controllers=*,-persistentvolume-attach-detach-controller. Either takes over what
// the other has attached, once the other has ended, while pods run. But Kubernetes' controller
// makes no VolumeAttachments of iSCSI: podvol's, and their PersistentVolumes, stay until this
// mode runs again after their pods, or the finalizer podvol.io/attached is removed from both.
//
// In its mode "local-discovery" it runs on every node (testdata/local-discovery.yaml), and
// offers the disks below /mnt/disks as local PersistentVolumes, beside either of them. It
// deletes none: a released volume and its data stay until an administrator decides.
//
// controller.go puts the parts together, and is meant to be copied.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, os.Args[1:]); err != nil {
		os.Exit(exitCode(err))
	}
}

func exitCode(err error) int {
	if errors.Is(err, pflag.ErrHelp) {
		return 0
	}
	fmt.Fprintln(os.Stderr, "controller:", err)
	if _, invalid := errors.AsType[*volume.InvalidSpecError](err); invalid || errors.Is(err, errUsage) {
		return 2
	}
	return 1
}

// accessBy says how to reach the API server.
func accessBy(kubeconfig string) (*rest.Config, error) {
	if kubeconfig != "" {
		return clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("how to reach the API server is not known (%w): use --kubeconfig or $KUBECONFIG, or run in a pod", err)
	}
	return config, nil
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args, os.Stderr)
	if err != nil {
		return err
	}
	config, err := accessBy(o.kubeconfig)
	if err != nil {
		return err
	}
	config.UserAgent, config.QPS, config.Burst = "podvol-controller", 1000, 2000 // the API server has limits of its own
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if o.mode == modeDiscovery {
		d, err := newDiscovery(o, clientset, table.Kernel(), log)
		if err != nil {
			return err
		}
		return serveAndRun(ctx, o.bindAddress, d.handler(), d.run)
	}
	leases, err := kubernetes.NewForConfig(config) // with limits of its own: renewals wait for nothing else
	if err != nil {
		return err
	}
	c, err := newController(o, clientset, leases.CoordinationV1(), host.New(host.Config{}), log)
	if err != nil {
		return err
	}
	return serveAndRun(ctx, o.bindAddress, handler(c), c.run)
}

func serveAndRun(ctx context.Context, address string, h http.Handler, run func(context.Context) error) error {
	serving, err := serve(address, h)
	if err != nil {
		return err
	}
	defer serving.Close()
	return run(ctx)
}
