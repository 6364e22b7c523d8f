package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/podvol/podvol/volume/localdiscovery"
)

// The modes.
const (
	modeProvisioner = "provisioner"
	modeEverything  = "everything"
	modeAttach      = "attach-detach"
	modeDiscovery   = "local-discovery"
)

// errUsage is for a command line that cannot be.
var errUsage = errors.New("usage")

type options struct {
	kubeconfig, mode, provisioner, rootDir, onDelete, bindAddress string
	nodeName                                                      string
	discover                                                      []string
	workers                                                       int
	detachAfter                                                   time.Duration
	elect                                                         bool
	leaseNamespace, leaseName                                     string
	leaseDuration, renewDeadline, retryPeriod                     time.Duration
}

// parse reads the command line; the flags about the lease are those of Kubernetes'
// components.
func parse(args []string, out io.Writer) (options, error) {
	var o options
	flags := pflag.NewFlagSet("controller", pflag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "file that says how to reach the cluster; empty: the pod's own service account")
	flags.StringVar(&o.mode, "mode", modeProvisioner, "provisioner: make and delete volumes, beside kube-controller-manager; everything: bind, reclaim and protect, too, without its controllers; attach-detach: attach volumes to nodes and detach them, without its attach/detach controller; local-discovery: offer the disks of this node, beside both")
	flags.StringVar(&o.provisioner, "provisioner", "nfs.podvol.io", "what StorageClasses call the provisioner, in mode provisioner; in the other one it is kubernetes.io/nfs")
	flags.StringVar(&o.nodeName, "node-name", nodeName(), "the node whose disks are offered, in mode local-discovery")
	flags.StringArrayVar(&o.discover, "discover", []string{localdiscovery.DefaultDir}, "DIR=CLASS: offer each disk that is mounted, or has a link, directly below DIR with this StorageClass, in mode local-discovery; may be repeated")
	flags.StringVar(&o.rootDir, "root-dir", "/var/lib/podvol-controller", "directory below which shares are mounted meanwhile")
	flags.StringVar(&o.onDelete, "on-delete", "delete", "what becomes of a volume's directory where the class does not say it: delete, archive or retain")
	flags.StringVar(&o.bindAddress, "bind-address", ":8080", "where /healthz, /readyz and /metrics are served; empty: nowhere")
	flags.DurationVar(&o.detachAfter, "detach-after", 0, "detach the volumes of a node that has not been Ready for this time, though it may still write to them; 0: wait until it is back, gone, or has the taint out-of-service; in mode attach-detach")
	flags.IntVar(&o.workers, "workers", 32, "how many claims and volumes are worked on at the same time")
	flags.BoolVar(&o.elect, "leader-elect", true, "hold a lease while working; without, only one process may run at a time")
	flags.StringVar(&o.leaseNamespace, "leader-elect-resource-namespace", "kube-system", "namespace of the lease")
	flags.StringVar(&o.leaseName, "leader-elect-resource-name", "", "name of the lease; empty: podvol-controller, or podvol-attach-detach in that mode")
	flags.DurationVar(&o.leaseDuration, "leader-elect-lease-duration", 15*time.Second, "how long others wait after the last renewal that they have seen")
	flags.DurationVar(&o.renewDeadline, "leader-elect-renew-deadline", 10*time.Second, "how long the leader works after its last renewal")
	flags.DurationVar(&o.retryPeriod, "leader-elect-retry-period", 2*time.Second, "the pause between renewals")
	if err := flags.Parse(args); errors.Is(err, pflag.ErrHelp) {
		return o, err
	} else if err != nil {
		return o, fmt.Errorf("%w: %w", errUsage, err)
	}
	if o.leaseName == "" {
		o.leaseName = "podvol-controller"
		if o.mode == modeAttach { // the other modes' may work beside it
			o.leaseName = "podvol-attach-detach"
		}
	}
	if err := o.check(flags); err != nil {
		return o, fmt.Errorf("%w: %w", errUsage, err)
	}
	return o, nil
}

// check refuses flags that cannot be.
func (o *options) check(flags *pflag.FlagSet) error {
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("there are no arguments besides flags: %q", flags.Args())
	case !slices.Contains([]string{modeProvisioner, modeEverything, modeAttach, modeDiscovery}, o.mode):
		return fmt.Errorf("--mode is %q; it can be %s, %s, %s or %s", o.mode, modeProvisioner, modeEverything, modeAttach, modeDiscovery)
	case o.mode != modeAttach && flags.Changed("detach-after"):
		return fmt.Errorf("--detach-after is for --mode %s", modeAttach)
	case o.detachAfter < 0:
		return fmt.Errorf("--detach-after is %s; it must not be negative", o.detachAfter)
	case o.mode == modeDiscovery && o.nodeName == "":
		return fmt.Errorf("--mode %s needs --node-name, or $NODE_NAME", modeDiscovery)
	case o.mode == modeDiscovery && flags.Changed("leader-elect") && o.elect:
		return fmt.Errorf("--mode %s runs on every node, and elects none", modeDiscovery)
	case o.mode != modeDiscovery && flags.Changed("discover"):
		return fmt.Errorf("--discover is for --mode %s", modeDiscovery)
	case o.mode != modeProvisioner && flags.Changed("provisioner"):
		return fmt.Errorf("--provisioner is for --mode %s; in --mode %s it is kubernetes.io/nfs", modeProvisioner, modeEverything)
	case o.workers < 1:
		return fmt.Errorf("--workers is %d; it must be at least 1", o.workers)
	}
	return nil
}
