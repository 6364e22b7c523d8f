package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/podvol/internal/ownplugins"
	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/podrun"
	"github.com/podvol/podvol/volume/podrun/runroot"
	"github.com/podvol/podvol/volume/standalone"
	"github.com/podvol/podvol/volume/volumemanager"
)

// exitRunFailed is run's exit code where podvol failed, not the program.
const exitRunFailed = podrun.ExitFailed

// exitError ends the command with a code of its own. Without an error there is
// nothing to print.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// claimsWait is how long a run waits for another that has the claims, which is
// while that binds its own. Run-node has them for as long as it runs.
const claimsWait = 30 * time.Second

// runOptions are the flags of podvol run.
type runOptions struct {
	files     []string
	rootDir   string
	nodeName  string
	pod       string
	container string
	rootfs    string
	timeout   time.Duration
	plugins   ownplugins.Options
	volumes   []string // directories for volumes that are made
	command   []string // empty: the container's own

	again
}

func runCommand(s streams) *cobra.Command {
	var o runOptions
	c := &cobra.Command{
		Use:   "run -f FILE|DIR|- [--pod NAMESPACE/NAME] [--container NAME] [--rootfs DIR] [-- CMD ARG…]",
		Short: "Run a command with the volumes of a container",
		Long: "Sets the volumes of a pod up, runs CMD where they are mounted as the container\n" +
			"would see them, and takes everything down again. Needs no root: an ordinary user\n" +
			"gets a user namespace, with the ids of /etc/subuid and /etc/subgid where newuidmap\n" +
			"and newgidmap are installed, else with its own id alone, as root.\n\n" +
			"CMD sees the container's mounts in a mount namespace of its own, the container's\n" +
			"environment on top of the caller's, and the working directory of the container,\n" +
			"else the caller's. With --rootfs that directory is its root, and nothing of the\n" +
			"caller's environment but TERM is left. It runs as the user and groups of the\n" +
			"security context, fsGroup among them, without the capabilities that it drops (as\n" +
			"another user than root: without any then), and with no_new_privs where it forbids\n" +
			"privilege escalation; what else it asks for is named and not done. Without CMD, the\n" +
			"container's command and args are run. Init containers are not run, but --container\n" +
			"can name one. This is no security boundary, and network, processes and resources\n" +
			"are the caller's. hostUsers: false changes nothing: no ids are mapped for the pod.\n\n" +
			"Each run has a root directory of its own, DIR/podvol/runs/<run> below the root\n" +
			"directory, which goes with it. Should podvol be killed, so is CMD, but not what CMD\n" +
			"has started, nor a CMD that is setuid; fsck --repair clears up. Claims are bound as\n" +
			"by podvol mount, in DIR, and stay bound; so does what is made for them there, for\n" +
			"the next run. Those of ephemeral volumes go with the last run of the pod, and what\n" +
			"a killed run left of them is not shown to the next. While podvol runs claims are in\n" +
			"use: nobody else deletes them, or gets one that is ReadWriteOncePod. Processes that\n" +
			"CMD leaves in the background keep the mounts that they see, lose emptyDirs, and use\n" +
			"claims that nobody sees used.\n\n" +
			"Signals are passed on, but for SIGINT and SIGQUIT while podvol is in a terminal's\n" +
			"foreground: those the terminal has sent to CMD as well, so send SIGTERM to podvol\n" +
			"alone. Until CMD has begun they end podvol. Exit code: that of CMD, 128+n where\n" +
			"signal n ended it; 125 when podvol itself failed, 126 when CMD cannot be executed,\n" +
			"127 when there is none.",
		Example: "  podvol run -f testdata/tour.yaml -- sh -c 'env; ls -l /etc/tour'\n" +
			"  podvol run -f testdata/tour.yaml -- sh -i",
		RunE: func(c *cobra.Command, args []string) error {
			o.command = args
			return runFailure(runPod(c.Context(), s, o))
		},
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return runFailure(usagef("%w; see %s --help", err, c.CommandPath()))
	})
	flags := c.Flags()
	flags.SetInterspersed(false) // what follows CMD is CMD's
	flags.StringArrayVarP(&o.files, "filename", "f", nil, "manifest file, directory of manifests, or - for standard input (repeatable)")
	addNodeName(flags, &o.nodeName, "this node's name (default: the node that the manifests name, else the host name)")
	flags.StringVar(&o.pod, "pod", "", "the pod, as NAMESPACE/NAME (default: the only one)")
	flags.StringVar(&o.container, "container", "", "the container, or init container (default: the first container)")
	flags.StringVar(&o.rootfs, "rootfs", "", "directory that becomes CMD's root (default: this machine's)")
	flags.DurationVar(&o.timeout, "timeout", kubeletPodWait, "how long to wait for all volumes")
	addVolumeDirs(flags, &o.volumes)
	o.plugins.Add(flags, usagef)
	flags.StringVar(&o.rootDir, "root-dir", defaultRootDir(), "directory below which each run has its root directory")
	o.again.add(flags)
	return c
}

// runFailure makes the error of podvol's own.
func runFailure(err error) error {
	if _, done := errors.AsType[*exitError](err); err == nil || done {
		return err
	}
	return &exitError{exitRunFailed, err}
}

func (o runOptions) check() error {
	if o.timeout <= 0 {
		return usagef("--timeout %s must be positive", o.timeout)
	}
	return checkRootfs(o.rootfs)
}

func runPod(ctx context.Context, s streams, o runOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	base, err := checkRootDir(o.rootDir)
	if err != nil {
		return err
	}
	o.rootDir = base
	if o.volumes, err = checkNewVolumeDirs(o.volumes); err != nil {
		return err
	}
	inside, err := becomeMounter(ctx, s, o.again, o.args)
	if !inside {
		removeEmptyBase(base) // the run was another process's, which takes it for one that was named
		return err
	}
	replacements, err := o.plugins.Plugins(ctx, false, s.err)
	if err != nil {
		return err
	}
	set, pods, err := loadPods(ctx, s, o.files, o.nodeName, o.pod)
	if err != nil {
		return err
	}
	job, err := newJob(ctx, s, o, set, pods)
	if err != nil {
		return err
	}
	job.plugins = replacements
	root, err := runsOf(base).New(job.pod.Namespace + "_" + job.pod.Name)
	if err != nil {
		return err
	}
	code, err := job.run(ctx, s, o, root)
	root.Close()
	removeEmptyBase(base)
	if err == nil && code == 0 {
		return nil
	}
	return &exitError{code, err}
}

// args are the arguments by which podvol starts itself again, but for what again
// adds.
func (o runOptions) args() []string {
	args := []string{"run", "--root-dir", o.rootDir, "--timeout", o.timeout.String(),
		"--node", o.nodeName, "--pod", o.pod, "--container", o.container, "--rootfs", o.rootfs}
	for _, file := range o.files {
		args = append(args, "-f", file)
	}
	for _, dir := range o.volumes {
		args = append(args, "--volume-dir", dir)
	}
	args = append(args, o.plugins.Args()...)
	return append(append(args, "--"), o.command...)
}

// run runs the program at root, which is removed in the end. An error comes with the exit
// code that it makes.
func (j *job) run(ctx context.Context, s streams, o runOptions, root *runroot.Root) (code int, err error) {
	log := slog.New(slog.NewTextHandler(s.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	r := podrun.Run{
		Program: j.program, Root: root, Manifests: j.set, Name: "podvol run", Timeout: o.timeout,
		Node: standalone.NodeConfig{NodeName: j.set.NodeName, Plugins: j.plugins, SetUpTimeout: o.timeout,
			Logger: log, Events: loggedEvents{log, func(s string) string { return s }}},
		Claims: standalone.ClaimsConfig{RootDir: o.rootDir, Manager: "podvol run", VolumeDirs: o.volumes, LockTimeout: min(o.timeout, claimsWait), Logger: log},
		Stdin:  s.in, Stdout: plaintext.AsGiven(s.out), Stderr: plaintext.AsGiven(s.err),
		Repair: shellJoin(append(programName(executable()), "fsck", "--repair", "--root-dir", o.rootDir)),
	}
	r.Groups = func(groups []int64) {
		fmt.Fprintf(s.err, "podvol: the volumes' files belong to groups %d (annotation pv.beta.kubernetes.io/gid), which podvol run does not add: name them in spec.securityContext.supplementalGroups\n", groups)
	}
	r.SetUp = func(ctx context.Context, node *standalone.Node, unbound standalone.UnboundClaims) error {
		return j.setUp(ctx, s, o, node, unbound)
	}
	r.DeleteEphemeral = func(ctx context.Context, ended bool) error {
		if !ended {
			return j.deleteEphemeral(ctx, o, io.Discard, io.Discard)
		}
		return j.deleteEphemeral(ctx, o, io.Discard, s.err)
	}
	if code, err = r.Do(ctx); errors.Is(err, errReported) {
		err = reportedAlso(s.err, besides(err, errReported))
	}
	return code, err
}

// besides are the errors that were joined to a given one.
func besides(err, known error) error {
	if err == known {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	var others []error
	for _, e := range joined.Unwrap() {
		others = append(others, besides(e, known))
	}
	return errors.Join(others...)
}

// deleteEphemeral deletes the claims of the pod's ephemeral volumes that nobody
// uses.
func (j *job) deleteEphemeral(ctx context.Context, o runOptions, deleted, kept io.Writer) error {
	return ephemeralClaims{
		options: changeOptions{rootDir: o.rootDir, nodeName: j.set.NodeName, volumeDirs: o.volumes, timeout: o.timeout},
		whose:   func(_ types.NamespacedName, uid types.UID) bool { return uid == j.pod.UID },
		deleted: deleted, kept: kept, wait: min(o.timeout, claimsWait),
	}.delete(ctx)
}

// setUp mounts the pod's volumes; errReported says that their errors are
// printed.
func (j *job) setUp(ctx context.Context, s streams, o runOptions, node *standalone.Node, unbound standalone.UnboundClaims) error {
	pods := []*v1.Pod{j.pod}
	ctx, cancel := context.WithTimeout(ctx, o.timeout+lastWord)
	defer cancel()
	report := newReport(failurePrinter{s.err}, s.err, volumemanager.StateMounted, volumesOf(pods))
	report.edit = func(v *volumemanager.VolumeStatus) { v.Err = unbound.Explain(v.Err) }
	if err := report.run(node.Manager, func(show func(volumemanager.VolumeStatus)) { setUpPods(ctx, node, pods, show) }); err != nil {
		return err
	}
	if report.failed {
		return errReported
	}
	return nil
}

// job is what shall be run: one container of one pod.
type job struct {
	set     *manifest.Set
	pod     *v1.Pod
	program *podrun.Program
	plugins []volume.VolumePlugin // in place of stock ones
}

// failurePrinter prints what failed and no rows: standard output is the
// program's.
type failurePrinter struct{ err io.Writer }

func (p failurePrinter) add(r row) error { return printError(p.err, r) }
func (p failurePrinter) close() error    { return nil }

// removeEmptyBase removes the default root directory where a run has left
// nothing in it; one that was named is not podvol's to remove.
func removeEmptyBase(base string) {
	if base == defaultRootDir() {
		_ = unix.Rmdir(base)
	}
}

// runsOf are the runs below a root directory.
func runsOf(base string) runroot.Runs { return runroot.Runs{Base: base, Option: "--root-dir"} }
