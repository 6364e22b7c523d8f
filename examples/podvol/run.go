package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/podvol/internal/completion"
	"github.com/podvol/podvol/examples/podvol/internal/ownplugins"
	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/examples/podvol/internal/report"
	"github.com/podvol/podvol/examples/podvol/internal/rows"
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
		Long: "Sets up the volumes of a pod, runs CMD with the container's mounts, environment,\n" +
			"working directory and user, and takes the volumes down again. It needs no root.\n" +
			"Without CMD it runs the container's command. Init containers run only if named.\n" +
			"It is no container runtime and no security boundary.\n" +
			"Claims are bound as by podvol mount, and stay. After a kill, fsck --repair clears up.\n" +
			"Send SIGTERM to podvol to stop it: a terminal sends SIGINT and SIGQUIT to CMD itself.\n" +
			"Exit code: CMD's; 128+n if signal n ended it; 125 if podvol failed; 126 if CMD\n" +
			"cannot be executed; 127 if there is no CMD.",
		Example: "  podvol run -f testdata/tour.yaml -- sh -c 'env; ls -l /etc/tour'\n" +
			"  podvol run -f testdata/tour.yaml -- sh -i",
		RunE: func(c *cobra.Command, args []string) error {
			o.command = args
			return runFailure(runPod(c.Context(), s, o))
		},
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return runFailure(flagError(c, err))
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
	completion.OfManifests(c)
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
	replacements, err := o.plugins.Plugins(ctx, false, s.logger())
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
	if job.claimPlugins, err = o.plugins.ForClaims(ctx, s.logger()); err != nil {
		return err
	}
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
	log := s.logger()
	r := podrun.Run{
		Program: j.program, Root: root, Manifests: j.set, Name: "podvol run", Timeout: o.timeout,
		Node: standalone.NodeConfig{NodeName: j.set.NodeName, Plugins: j.plugins, Translator: o.plugins.Translator(), SetUpTimeout: o.timeout,
			Logger: log, Events: loggedEvents{log, func(s string) string { return s }}},
		Claims: standalone.ClaimsConfig{RootDir: o.rootDir, Manager: "podvol run", VolumeDirs: o.volumes, Plugins: j.claimPlugins, LockTimeout: min(o.timeout, claimsWait), Logger: log},
		Stdin:  s.in, Stdout: plaintext.AsGiven(s.out), Stderr: plaintext.AsGiven(s.err),
		Repair: shellJoin(append(programName(executable()), append([]string{"fsck", "--repair", "--root-dir", o.rootDir}, o.plugins.DriverArgs()...)...)),
	}
	r.Groups = func(groups []int64) {
		fmt.Fprintf(s.err, "podvol: the volumes' files belong to groups %d (annotation pv.beta.kubernetes.io/gid), which podvol run does not add: name them in spec.securityContext.supplementalGroups\n", groups)
	}
	before := ctx
	r.SetUp = func(ctx context.Context, node *standalone.Node, unbound standalone.UnboundClaims) error {
		if before.Err() != nil { // by a signal that came before the run had them
			return fmt.Errorf("%w before the command was run", context.Cause(before))
		}
		return j.setUp(ctx, s, o, node, unbound)
	}
	r.DeleteEphemeral = func(ctx context.Context, ended bool) error {
		if !ended {
			return j.deleteEphemeral(ctx, o, io.Discard, io.Discard)
		}
		return j.deleteEphemeral(ctx, o, io.Discard, s.err)
	}
	// Signals are the run's from here on: that which ends the set-up must not end the tear-down, too.
	if code, err = r.Do(context.WithoutCancel(ctx)); errors.Is(err, errReported) {
		err = reportedAlso(s, besides(err, errReported))
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

// deleteEphemeral deletes the unused claims of the pod's ephemeral volumes.
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
	interrupted := func() error { return context.Cause(ctx) }
	printed := report.New(failurePrinter{s.err}, s.err, volumemanager.StateMounted, volumesOf(pods))
	printed.Edit, printed.Interrupted = func(v *volumemanager.VolumeStatus) { v.Err = unbound.Explain(v.Err) }, interrupted
	within, cancel := context.WithTimeout(ctx, o.timeout+lastWord)
	defer cancel()
	if err := printed.Run(node.Manager, func(show func(volumemanager.VolumeStatus)) { setUpPods(within, node, pods, show) }); err != nil {
		return err
	}
	switch why := interrupted(); {
	case why != nil && len(printed.Stopped) > 0:
		return fmt.Errorf("%w before the command was run", why)
	case printed.Failed:
		return errReported
	}
	return nil
}

// job is what shall be run: one container of one pod.
type job struct {
	set     *manifest.Set
	pod     *v1.Pod
	program *podrun.Program
	// plugins are in place of stock ones, on the node and for its claims.
	plugins, claimPlugins []volume.VolumePlugin
}

// failurePrinter prints what failed and no rows: standard output is the
// program's.
type failurePrinter struct{ err io.Writer }

// Add implements rows.Printer.
func (p failurePrinter) Add(all ...rows.Row) error {
	for _, r := range all {
		if err := rows.PrintError(p.err, r); err != nil {
			return err
		}
	}
	return nil
}

// Close implements rows.Printer.
func (p failurePrinter) Close() error { return nil }

// removeEmptyBase removes the default root directory where a run has left
// nothing in it; one that was named is not podvol's to remove.
func removeEmptyBase(base string) {
	if base == defaultRootDir() {
		_ = unix.Rmdir(base)
	}
}

// runsOf are the runs below a root directory.
func runsOf(base string) runroot.Runs { return runroot.Runs{Base: base, Option: "--root-dir"} }
