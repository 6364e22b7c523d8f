package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/kubecluster"
)

// base is where the run's directory is in its namespaces: paths of sockets are short.
const base = "/mnt"

// admin is the kubeconfig of a user who may do everything.
const admin = base + "/cluster/admin.kubeconfig"

// runStage starts the cluster, and runs the tests in it. What it has started ends with the
// namespace of processes.
func runStage(o options) error {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	if err := errors.Join(mountOwn(), mounting(o.Dir, base, "", unix.MS_BIND, ""), setUpNetwork(o)); err != nil {
		return err
	}
	if err := writeAuditPolicy(); err != nil {
		return err
	}
	plane, err := kubecluster.New(kubecluster.Config{Assets: o.Assets, Dir: base + "/cluster", Address: kubecluster.ServiceAddress, Port: 443, Controllers: true, Flags: auditing()})
	if err != nil {
		return err
	}
	defer plane.Kill()
	if err := plane.Start(ctx); err != nil {
		return err
	}
	config, err := plane.Kubeconfig("admin", "system:masters")
	if err != nil {
		return err
	}
	if err := os.WriteFile(admin, config, 0o600); err != nil {
		return err
	}
	if err := startNodes(ctx, o, plane, cancel); err != nil {
		return err
	}
	if o.Timings > 0 {
		client, err := plane.Client("timings", "system:masters")
		if err != nil {
			return err
		}
		return because(ctx, timer{client, plane.URL()}.timings(ctx, os.Stdout, o))
	}
	if o.Handover {
		return because(ctx, handover{o, node{number: 1}}.run(ctx, os.Stdout))
	}
	if o.DaemonSets {
		return because(ctx, daemonSets{handover{o, node{number: 1}}}.run(ctx, os.Stdout))
	}
	if o.Pods > 0 {
		return because(ctx, many{o, node{number: 1}, plane}.run(ctx, os.Stdout))
	}
	if err := runTests(ctx, o); err != nil || !o.tests() {
		return because(ctx, err)
	}
	return because(ctx, nothingLeft(ctx, os.Stdout, o))
}

// because adds to an error the reason why ctx has ended.
func because(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return err
}

// setUpNetwork gives the run's loopback interface the addresses of the API server and of
// the nodes.
func setUpNetwork(o options) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	addresses := []string{kubecluster.ServiceAddress}
	for number := 1; number <= o.Nodes; number++ {
		addresses = append(addresses, node{number: number}.address())
	}
	for _, address := range addresses {
		parsed, err := netlink.ParseAddr(address + "/32")
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(lo, parsed); err != nil {
			return fmt.Errorf("address %s: %w", address, err)
		}
	}
	return netlink.LinkSetUp(lo)
}

// startNodes returns once all nodes are ready. It calls ended with the first one that
// ends later.
func startNodes(ctx context.Context, o options, plane *kubecluster.ControlPlane, ended func(error)) error {
	var names []string
	for number := 1; number <= o.Nodes; number++ {
		n := node{number: number}
		if err := n.prepare(o, plane); err != nil {
			return err
		}
		cmd, err := stage(ctx, "node-init-"+n.name(), o, syscall.CLONE_NEWPID|syscall.CLONE_NEWNS|syscall.CLONE_NEWUTS|syscall.CLONE_NEWIPC)
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		go func() { ended(fmt.Errorf("%s has ended: %w", n.name(), cmd.Wait())) }()
		names = append(names, "node/"+n.name())
	}
	for _, name := range names {
		for _, condition := range []string{"create", "condition=Ready"} {
			if _, err := quietly(inCluster(ctx, o, "kubectl", "wait", "--for="+condition, "--timeout=120s", name)); err != nil {
				return because(ctx, err)
			}
		}
	}
	return nil
}

// quietly runs a program, and returns what it prints. An error has that, too.
func quietly(cmd *exec.Cmd) (string, error) {
	out, err := cmd.CombinedOutput()
	said := strings.TrimSpace(string(out))
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, said)
	}
	return said, nil
}

// inCluster returns a program that finds the cluster, and those that are built for it.
func inCluster(ctx context.Context, o options, name string, args ...string) *exec.Cmd {
	path := name
	if built := filepath.Join(o.Assets, name); !strings.Contains(name, "/") && exists(built) {
		path = built
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+admin, "PATH="+o.Assets+":"+os.Getenv("PATH"))
	return cmd
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
