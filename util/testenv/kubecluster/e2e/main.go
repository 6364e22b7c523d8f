package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/podvol/podvol/util/removetree"
)

// options are what the command is told, and what it tells the stages in its namespaces.
type options struct {
	Focus, Skip string
	Labels      string
	Part        part
	Parallel    int
	Kinds       []string // of the nodes, in turn
	Nodes       int
	Timings     int  // how many pods of each mix are measured, instead of the tests
	Handover    bool // a node changes hands, instead of the tests
	DaemonSets  bool // podvol's own DaemonSets run, instead of the tests
	Pods        int  // how many come and go on one node, instead of the tests
	CSI         bool // the images of CSI's drivers for tests are made, and nodes take drivers
	NodeFlags   []string
	Verbose     bool
	Command     []string // run instead of the tests

	Assets  string // the directory of the programs
	CSIDir  string // the directory of CSI's sidecars
	Module  string // the directory of this source
	Dir     string // of the run, on this machine
	CGroup  string // of the run, below each hierarchy
	Results string // where the tests' results are to be, below Dir
	Failing string // the list of tests that fail here
}

// tests says whether the tests run, and not something else.
func (o options) tests() bool {
	return len(o.Command) == 0 && o.Timings == 0 && !o.Handover && !o.DaemonSets && o.Pods == 0
}

// conformance are the labels of the tests that every node must pass.
const conformance = "sig-storage && (Conformance || NodeConformance)"

func main() {
	runtime.LockOSThread() // children die with the thread that started them
	if err := dispatch(); err != nil {
		fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
		os.Exit(1)
	}
}

func dispatch() error {
	if len(os.Args) == 3 && stages()[os.Args[1]] != nil {
		var o options
		if err := json.Unmarshal([]byte(os.Args[2]), &o); err != nil {
			return err
		}
		return stages()[os.Args[1]](o)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parse(os.Args[1:])
	if err != nil {
		return err
	}
	return command(ctx, o)
}

// stages are what this program is as a process in the run's namespaces.
func stages() map[string]func(options) error {
	stages := map[string]func(options) error{
		"init": func(o options) error { return reap("run", o) },
		"run":  runStage,
	}
	for number := 1; number <= maxNodes; number++ {
		n := node{number: number}
		stages["node-init-"+n.name()] = n.initStage
		stages["node-"+n.name()] = n.stage
	}
	return stages
}

func parse(args []string) (options, error) {
	o := options{Results: "results.json"}
	set := flag.NewFlagSet("e2e", flag.ExitOnError)
	set.StringVar(&o.Focus, "focus", "", "run only tests whose names match the `pattern`")
	set.StringVar(&o.Skip, "skip", "", "leave out tests whose names match the `pattern`")
	set.StringVar(&o.Labels, "labels", conformance, "run only tests with these `labels`, in Ginkgo's words; empty: all")
	set.Var(&o.Part, "part", "run only a part of the tests, such as `3/12`")
	set.IntVar(&o.Parallel, "parallel", 4, "how many tests run at a time")
	kinds := set.String("node", "virtualkubelet", "which `program` the nodes run: virtualkubelet or kubelet; with kubelet,virtualkubelet one runs each")
	set.IntVar(&o.Timings, "timings", 0, "measure `so many` pods of ten mixes of volumes on each node, instead of tests")
	set.BoolVar(&o.Handover, "handover", false, "have a node change hands from a kubelet to podvol and back, instead of tests")
	set.BoolVar(&o.DaemonSets, "daemonsets", false, "run podvol's node and its discovery of disks as DaemonSets on a kubelet's node, instead of tests")
	set.IntVar(&o.Pods, "pods", 0, "have `so many` pods of six volumes each come and go on one node, instead of tests")
	set.IntVar(&o.Nodes, "nodes", 2, fmt.Sprintf("how many nodes there are, at most %d", maxNodes))
	set.BoolVar(&o.CSI, "csi", false, "have nodes take CSI drivers, and make the images of those that tests deploy")
	set.Func("node-flag", "a further `flag` of the nodes' program; may be repeated", func(value string) error {
		o.NodeFlags = append(o.NodeFlags, value)
		return nil
	})
	set.BoolVar(&o.Verbose, "v", false, "show what the tests say")
	set.StringVar(&o.Assets, "assets", "", "the `directory` with the programs; empty: testdata/kubernetes/build builds them")
	if err := set.Parse(args); err != nil {
		return o, err
	}
	o.Command = set.Args()
	o.Kinds = strings.Split(*kinds, ",")
	if o.Handover {
		o.Kinds = []string{"kubelet", "virtualkubelet"} // of which the only node begins with the first
	}
	if o.DaemonSets {
		o.Kinds = []string{"kubelet"}
	}
	if o.Handover || o.DaemonSets || o.Pods > 0 {
		o.Nodes = 1
	}
	for _, kind := range o.Kinds {
		if nodePrograms()[kind] == nil {
			return o, fmt.Errorf("there is no node %q", kind)
		}
	}
	if o.Nodes < 1 || o.Nodes > maxNodes {
		return o, fmt.Errorf("there can be 1 to %d nodes, not %d", maxNodes, o.Nodes)
	}
	for _, pattern := range []string{o.Focus, o.Skip} {
		if _, err := regexp.Compile(pattern); err != nil {
			return o, err
		}
	}
	return o, nil
}

// command prepares a run, starts it in its namespaces, and shows the results.
func command(ctx context.Context, o options) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("nodes mount for real: run it as root")
	}
	if o.Dir, err = os.MkdirTemp("", "e2e-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cleanUp(o, err != nil)) }()
	if o.CGroup, err = makeCGroup(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeCGroup(o.CGroup)) }()
	if err := prepare(ctx, &o); err != nil {
		return err
	}
	run, err := stage(ctx, "init", o, syscall.CLONE_NEWPID|syscall.CLONE_NEWNS|syscall.CLONE_NEWNET|syscall.CLONE_NEWIPC|syscall.CLONE_NEWUTS)
	if err != nil {
		return err
	}
	ended := run.Run()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !o.tests() {
		return ended
	}
	return errors.Join(o.judge(os.Stdout, filepath.Join(o.Dir, o.Results)), ended)
}

// prepare builds what the nodes run, and their images.
func prepare(ctx context.Context, o *options) error {
	module, err := output(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/podvol/podvol")
	if err != nil {
		return err
	}
	o.Module = module
	list, err := os.ReadFile(filepath.Join(module, failingTests))
	if err != nil {
		return err
	}
	o.Failing = string(list)
	if o.Assets == "" {
		programs := []string{"end-to-end"}
		if slices.Contains(o.Kinds, "kubelet") {
			programs = append(programs, "kubelet")
		}
		if o.Assets, err = output(ctx, filepath.Join(module, "testdata/kubernetes/build"), programs...); err != nil {
			return err
		}
	}
	for _, dir := range []string{"cluster", "programs", "nodes", "tmp"} {
		if err := os.Mkdir(filepath.Join(o.Dir, dir), 0o755); err != nil {
			return err
		}
	}
	programs := filepath.Join(o.Dir, "programs")
	own := []string{"./util/testenv/kubecluster/pause"}
	if o.CSI {
		own = append(own, "./util/testenv/csiparts")
		if o.CSIDir, err = output(ctx, filepath.Join(module, "testdata/csi/drivers/build"), "sidecars"); err != nil {
			return err
		}
	}
	if _, err := output(ctx, "env", append([]string{"CGO_ENABLED=0", "go", "build", "-C", module, "-o", programs}, own...)...); err != nil {
		return err
	}
	if err := buildExamples(ctx, *o); err != nil {
		return err
	}
	return writeImages(ctx, *o)
}

// buildExamples builds the examples that the nodes run.
func buildExamples(ctx context.Context, o options) error {
	var examples []string
	if o.DaemonSets || slices.Contains(o.Kinds, "virtualkubelet") {
		examples = append(examples, "./virtualkubelet")
	}
	if o.DaemonSets {
		examples = append(examples, "./controller")
	}
	if o.Handover {
		examples = append(examples, "./podvol")
	}
	for _, example := range examples {
		if _, err := output(ctx, "env", "CGO_ENABLED=0", "go", "build", "-C", filepath.Join(o.Module, "examples"), "-o", filepath.Join(o.Dir, "programs"), example); err != nil {
			return err
		}
	}
	return nil
}

// output runs a program, and returns what it prints, without the last new line.
func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(append([]string{name}, args...), " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// remove removes a directory tree, but nothing that is mounted in it.
func remove(path string) error {
	return removetree.Remove(context.Background(), filepath.Dir(path), filepath.Base(path))
}

// cleanUp removes the run's directory, but for logs after a failure, and what the tests
// have left in the kernel.
func cleanUp(o options, failed bool) error {
	for number := 1; number <= o.Nodes; number++ {
		if err := (node{number: number}).detachLoops(o); err != nil {
			return err
		}
	}
	if !failed {
		return remove(o.Dir)
	}
	for _, kept := range []string{"images.tar", "programs", "tmp", "cluster/etcd"} {
		if err := remove(filepath.Join(o.Dir, kept)); err != nil {
			return err
		}
	}
	for number := 1; number <= o.Nodes; number++ {
		if err := (node{number: number}).removeState(o); err != nil {
			return err
		}
	}
	fmt.Printf("logs are in %s\n", o.Dir)
	return nil
}
