package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/podvol/internal/attachments"
	"github.com/podvol/podvol/examples/podvol/internal/choice"
	"github.com/podvol/podvol/examples/podvol/internal/nodebundle"
	"github.com/podvol/podvol/examples/podvol/internal/ownplugins"
	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/examples/podvol/internal/problems"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/propagation"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume/kubeletroot"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/podrun/runroot"
	"github.com/podvol/podvol/volume/standalone"
	"github.com/podvol/podvol/volume/volumemanager"
)

// fsckOptions are the flags of podvol fsck.
type fsckOptions struct {
	rootDir, output string
	repair, adopt   bool
	pods, bundle    string
	again
	drivers ownplugins.Options
}

func fsckCommand(s streams) *cobra.Command {
	var o fsckOptions
	c := &cobra.Command{
		Use:   "fsck [--repair] [--adopt]",
		Short: "Look for leftovers below the root directory, and repair them",
		Long: "Compares records, directories, mounts and mount helpers, and prints each problem and\n" +
			"its repair. A volume that is attached to this machine and that no pod uses is a problem.\n" +
			"Exit code: 0 without problems, or with all repaired; else 1.\n\n" +
			"--repair tears down unfinished set-ups and records without a mount, unmounts all\n" +
			"but the lowest of stacked mounts, ends the helpers of a dead agent, and detaches\n" +
			"volumes that no pod uses, by the drivers that are named. It deletes recursively only\n" +
			"the root directories of dead podvol runs; an ordinary user may repair nothing else.\n\n" +
			"--adopt makes records of volumes that have none. It is refused while a kubelet runs.\n\n" +
			"While records are damaged, nothing that they may have named is deleted. fsck prints the\n" +
			"damaged file; once its volumes are unmounted or adopted, remove it.\n\n" +
			"Below a running kubelet's root directory fsck changes nothing. It finds orphaned pods,\n" +
			"leaked mounts, CSI volumes without vol_data.json, and servers that do not answer.\n\n" +
			"--bundle masks secrets and has no contents of volumes, but it has names.",
		Example: "  podvol fsck\n" +
			"  podvol fsck --repair\n" +
			"  podvol fsck --root-dir /var/lib/kubelet --bundle node1.tar.gz    # beside the kubelet\n" +
			"  podvol fsck --root-dir /var/lib/kubelet --adopt    # only show what would be adopted",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return fsck(c.Context(), s, o) },
	}
	flags := c.Flags()
	flags.BoolVar(&o.repair, "repair", false, "repair what can be")
	flags.BoolVar(&o.adopt, "adopt", false, "make records of volumes that have none")
	flags.StringVar(&o.pods, "pods", "", "file with the node's pods, as of kubectl get pods -A -o json: directories of others are orphans")
	flags.StringVar(&o.bundle, "bundle", "", "write what a maintainer needs to this new file, a tar.gz")
	choice.AddOutput(c, &o.output, problems.Formats()...)
	addRootDir(flags, &o.rootDir)
	o.drivers.AddDrivers(flags, usagef)
	o.again.add(flags)
	return c
}

func fsck(ctx context.Context, s streams, o fsckOptions) error {
	rootDir, err := checkRootDir(o.rootDir)
	if err != nil {
		return err
	}
	list := problems.NewList(o.output, s.out)
	look, err := newLook(rootDir, o)
	if err != nil {
		return err
	}
	if _, err := os.Stat(rootDir); errors.Is(err, fs.ErrNotExist) {
		plaintext.Line(s.err, "Nothing to check: %s does not exist.", rootDir)
		return list.Close()
	}
	o.rootDir = rootDir
	warnHidden(s.err, rootDir)
	log := s.logger()
	own, err := o.drivers.Plugins(ctx, false, log)
	if err != nil {
		return err
	}
	list.Missing = o.drivers.Missing(volumesBelow(rootDir))
	config := volumemanager.Config{
		RootDir: rootDir, NodeName: "localhost", Objects: objects.NewStore(), Plugins: plugins.All(own...), Adopt: o.adopt, Logger: log,
	}
	attached := attachments.Checker{Node: standalone.NodeConfig{RootDir: rootDir, NodeName: "localhost", Objects: objects.NewStore(), Plugins: own, Logger: log}, Volumes: func() []volumemanager.VolumeStatus { return volumesBelow(rootDir) }}
	if !o.repair {
		notes, unread := attached.Check(list)
		for _, note := range notes {
			s.say("%s", note)
		}
		err := errors.Join(unread, look.check(ctx, config, s.err, list), checkRuns(rootDir, list), checkStored(rootDir))
		return o.conclude(s, list, errors.Join(err, list.Close(), look.writeBundle(list, err)))
	}
	defer removeEmptyBase(rootDir)
	if proceed, err := mayRepair(ctx, s, o, config); !proceed {
		return err
	}
	err = errors.Join(repairRoot(ctx, config, list), attached.Repair(ctx, list), repairRuns(ctx, rootDir, o.drivers, config.Logger, list), checkStored(rootDir))
	return o.conclude(s, list, errors.Join(err, list.Close()))
}

// conclude says what the list comes to.
func (o fsckOptions) conclude(s streams, list *problems.List, err error) error {
	if !list.Advised {
		list.Missing.Tell(s.err)
	}
	switch {
	case err != nil:
		return err
	case list.Count == 0:
		plaintext.Line(s.err, "Nothing is wrong below %s.", o.rootDir)
		return nil
	case list.Open == 0:
		return nil
	case !o.repair && list.Repairable > 0:
		plaintext.Line(s.err, "To repair: %s", shellJoin(slices.Concat(programName(os.Args[0]), o.repairArgs(), list.Missing.Flags)))
	}
	return errReported
}

func (o fsckOptions) repairArgs() []string {
	args := append([]string{"fsck", "--repair", "--root-dir", o.rootDir}, o.drivers.Args()...)
	if o.adopt {
		args = append(args, "--adopt")
	}
	return args
}

// mayRepair makes sure that the repair may unmount. An ordinary user has
// nothing mounted here that a repair could see but what runs have left, and
// gets a user namespace for that: then mayRepair returns false and how that
// ended.
func mayRepair(ctx context.Context, s streams, o fsckOptions, config volumemanager.Config) (bool, error) {
	if !o.inside && mayMount() != nil {
		problems, err := volumemanager.Check(ctx, config)
		if err != nil {
			return false, err
		}
		if len(problems) > 0 || o.adopt {
			return false, mayMount()
		}
		dead, done, err := runsOf(o.rootDir).Dead()
		done()
		if err != nil || len(dead) == 0 {
			return true, err
		}
	}
	return becomeMounter(ctx, s, o.again, func() []string { return append(o.repairArgs(), "-o", o.output) })
}

// repairRoot leaves a root alone at which nothing is wrong.
func repairRoot(ctx context.Context, config volumemanager.Config, list *problems.List) error {
	if problems, err := volumemanager.Check(ctx, config); err != nil || len(problems) == 0 {
		return err
	}
	return volumemanager.Repair(ctx, config, func(p volumemanager.Problem, err error) { list.Add(p, p.Repair != "", err) })
}

// problemDeadRun is what a podvol run left that was killed.
const problemDeadRun volumemanager.ProblemKind = "run of a dead process"

// checkRuns lists the runs whose process is gone.
func checkRuns(rootDir string, list *problems.List) error {
	dead, done, err := runsOf(rootDir).Dead()
	defer done()
	for _, r := range dead {
		list.Add(problemOf(r), false, nil)
	}
	return err
}

// repairRuns tears down what such runs have left, and removes their root
// directories. One that cannot be removed holds up no other.
func repairRuns(ctx context.Context, rootDir string, drivers ownplugins.Options, log *slog.Logger, list *problems.List) error {
	dead, done, err := runsOf(rootDir).Dead()
	defer done()
	if err != nil {
		return err
	}
	for _, r := range dead {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p := problemOf(r)
		list.Add(p, true, clearUp(ctx, r, drivers, log))
	}
	runsOf(rootDir).RemoveEmpty() // a run may have failed before it had a root directory
	return nil
}

// volumesBelow returns the volumes of a root directory, and those that such runs have left. What
// cannot be read is a problem that is told later.
func volumesBelow(rootDir string) []volumemanager.VolumeStatus {
	mounts := table.Kernel()
	volumes, _ := volumemanager.Inspect(rootDir, mounts)
	dead, done, _ := runsOf(rootDir).Dead()
	defer done()
	for _, r := range dead {
		left, _ := volumemanager.Inspect(r.Path(), mounts)
		volumes = append(volumes, left...)
	}
	return volumes
}

func problemOf(r *runroot.Root) volumemanager.Problem {
	p := volumemanager.Problem{
		Kind: problemDeadRun, Path: r.Path(),
		Err:    errors.New("a podvol run has ended and left its root directory: it was killed, or could not take its volumes down"),
		Repair: "tear down the rest of its volumes and remove the directory",
	}
	mounts := table.Kernel()
	volumes, _ := volumemanager.Inspect(r.Path(), mounts) // what cannot be read, the repair will say
	if len(volumes) > 0 {
		p.Pod, p.PodUID = volumes[0].Pod, volumes[0].PodUID
		p.Err = fmt.Errorf("%w, which has %d volumes", p.Err, len(volumes))
	}
	return p
}

// clearUp takes the root over as the next owner would, tears everything down
// and removes it.
func clearUp(ctx context.Context, r *runroot.Root, drivers ownplugins.Options, log *slog.Logger) error {
	err := tearDownAll(ctx, r.Path(), drivers, log)
	if err != nil {
		return err
	}
	return r.Remove(ctx)
}

func tearDownAll(ctx context.Context, rootDir string, drivers ownplugins.Options, log *slog.Logger) error {
	own, err := drivers.Plugins(ctx, false, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	node, err := standalone.StartNode(ctx, standalone.NodeConfig{RootDir: rootDir, NodeName: "localhost", Objects: objects.NewStore(), Plugins: own, Logger: log})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, kubeletPodWait)
	defer cancel()
	var errs []error
	done := make(map[types.UID]bool)
	for _, v := range node.Explain() {
		if !done[v.PodUID] {
			done[v.PodUID] = true
			errs = append(errs, node.TearDownPod(ctx, v.PodUID))
		}
	}
	// What its records have lost may be here still.
	return errors.Join(append(errs, node.Damaged(), node.Stop())...)
}

// look is how fsck looks at a root directory that it does not repair.
type look struct {
	rootDir string
	bundle  string // empty: none is wanted
	pods    map[types.UID]bool
	// foreign: podvol never had the root.
	foreign, adopt bool
}

func newLook(rootDir string, o fsckOptions) (*look, error) {
	if o.repair && (o.pods != "" || o.bundle != "") {
		return nil, usagef("--pods and --bundle are for looking only, without --repair")
	}
	_, err := os.Lstat(volumemanager.StateDir(rootDir))
	l := &look{rootDir: rootDir, foreign: errors.Is(err, fs.ErrNotExist), adopt: o.adopt}
	if o.pods != "" {
		file, err := os.Open(o.pods)
		if err != nil {
			return nil, usagef("--pods: %w", err)
		}
		defer file.Close()
		if l.pods, err = kubeletroot.ReadPods(file); err != nil {
			return nil, usagef("--pods: %s: %w", o.pods, err)
		}
	}
	if o.bundle != "" {
		if l.bundle, err = nodebundle.Check(o.bundle, rootDir); err != nil {
			return nil, usagef("--bundle: %w", err)
		}
	}
	return l, nil
}

// check lists the problems, and changes nothing.
func (l *look) check(ctx context.Context, config volumemanager.Config, notes io.Writer, list *problems.List) error {
	problems, err := volumemanager.Check(ctx, config)
	others := 0
	for _, p := range problems {
		if l.foreign && !l.adopt && !slices.Contains([]volumemanager.ProblemKind{volumemanager.ProblemHelper, volumemanager.ProblemUnreadable}, p.Kind) {
			others++ // it is the other agent's
			continue
		}
		list.Add(p, false, nil)
	}
	if others > 0 {
		fmt.Fprintf(notes, "podvol: another agent has %d volumes and mounts below %s; with --adopt fsck shows what a take-over would do\n", others, l.rootDir)
	}
	if pid, runs := kubeletroot.Kubelet("/proc"); runs && l.adopt {
		fmt.Fprintf(notes, "podvol: a kubelet runs (process %d): stop it before fsck --repair --adopt, or run-node --adopt\n", pid)
	}
	if !l.foreign && l.pods == nil {
		return err
	}
	return errors.Join(err, l.checkKubelet(ctx, notes, list))
}

func (l *look) checkKubelet(ctx context.Context, notes io.Writer, list *problems.List) error {
	report, err := kubeletroot.Examine(ctx, kubeletroot.Config{RootDir: l.rootDir, Mounts: table.Kernel(), Pods: l.pods})
	for _, f := range report.Findings {
		list.Add(volumemanager.Problem{Kind: volumemanager.ProblemKind(f.Kind), PodUID: f.PodUID, Volume: f.Volume, Path: f.Path, Err: f.Err, Advice: f.Advice}, false, nil)
	}
	if report.KnownBy == "" && len(report.Pods) > 0 {
		fmt.Fprintln(notes, "podvol: which pods there are is not known, as no pod has a cgroup; --pods FILE says it, else no orphan is found")
	}
	if report.Truncated {
		fmt.Fprintf(notes, "podvol: there is more below %s than was read\n", l.rootDir)
	}
	return err
}

// writeBundle writes the bundle, if one is wanted, also if the look has failed.
func (l *look) writeBundle(list *problems.List, failed error) error {
	if l.bundle == "" {
		return nil
	}
	return nodebundle.Write(l.bundle, l.rootDir, list.Rows, failed)
}

// warnHidden says if the host does not see mounts that are made here. What cannot be
// found out is no warning: this command mounts nothing.
func warnHidden(out io.Writer, rootDir string) {
	if w, err := propagation.Of(host.New(host.Config{}), rootDir); err == nil && w != nil {
		fmt.Fprintf(out, "podvol: warning: %s; %s\n", w, w.Advice())
	}
}
