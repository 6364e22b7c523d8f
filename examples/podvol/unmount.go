package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/podvol/internal/choice"
	"github.com/podvol/podvol/examples/podvol/internal/completion"
	"github.com/podvol/podvol/examples/podvol/internal/ownplugins"
	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/examples/podvol/internal/report"
	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/standalone"
	"github.com/podvol/podvol/volume/volumemanager"
)

// unmountOptions are the flags of podvol unmount.
type unmountOptions struct {
	files    []string
	rootDir  string
	nodeName string
	pods     []string
	uids     []string
	all      bool
	output   string
	timeout  time.Duration

	volumeDirs []string // where volumes of claims were made
	plugins    ownplugins.Options
}

func unmountCommand(s streams) *cobra.Command {
	var o unmountOptions
	c := &cobra.Command{
		Use:        "unmount [-f FILE|DIR|-] [--pod NAMESPACE/NAME] [--all]",
		Short:      "Unmount the volumes of pods",
		SuggestFor: []string{"umount"}, // which is more like mount
		Long: "Unmounts the volumes of the pods in the manifests, of the pods named, or of all\n" +
			"pods below the root directory, as far as podvol mounted them, removes their\n" +
			"directories, and prints one row per volume. Make sure that nothing uses them.\n" +
			"Data that outlives pods (NFS, hostPath, local) stays; emptyDirs are emptied.\n\n" +
			"The claims of a pod's ephemeral volumes go with it once all that it has mounted is\n" +
			"unmounted, and their volumes by the reclaim policy, as with podvol pvc delete; one\n" +
			"that a podvol run uses stays. All other claims stay.\n\n" +
			"Exit code: 0 when all that was asked for is unmounted, and was mounted where a pod\n" +
			"was named; 1 when not, and standard error says what is mounted; 2 for a wrong\n" +
			"command line or manifest.",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return unmountPods(c.Context(), s, o) },
	}
	flags := c.Flags()
	flags.StringArrayVarP(&o.files, "filename", "f", nil, "manifest file, directory of manifests, or - for standard input (repeatable)")
	addNodeName(flags, &o.nodeName, "this node's name, if mount was given one: pods of other nodes are left alone")
	flags.StringArrayVar(&o.pods, "pod", nil, "unmount this pod, as NAMESPACE/NAME; with -f: only this one of the manifests (repeatable)")
	flags.StringArrayVar(&o.uids, "uid", nil, "unmount the pod with this UID, where several have its name (repeatable)")
	flags.BoolVar(&o.all, "all", false, "unmount all pods below the root directory; with --node: all of that node")
	_ = errors.Join(c.RegisterFlagCompletionFunc("pod", completion.Pods), c.RegisterFlagCompletionFunc("uid", completion.UIDs)) // the flags are there
	choice.AddOutput(c, &o.output, rows.Formats()...)
	flags.DurationVar(&o.timeout, "timeout", kubeletPodWait, "how long to wait for all volumes")
	addVolumeDirs(flags, &o.volumeDirs)
	o.plugins.AddDrivers(flags, usagef)
	addRootDir(flags, &o.rootDir)
	return c
}

func (o unmountOptions) check() error {
	switch {
	case o.timeout <= 0:
		return usagef("--timeout %s must be positive", o.timeout)
	case o.all && (len(o.files) > 0 || len(o.pods) > 0 || len(o.uids) > 0):
		return usagef("--all goes without -f, --pod and --uid")
	case len(o.uids) > 0 && (len(o.files) > 0 || len(o.pods) > 0):
		return usagef("--uid goes without -f and --pod")
	case !o.all && len(o.files) == 0 && len(o.pods) == 0 && len(o.uids) == 0:
		return usagef("say what to unmount with -f, --pod, --uid or --all")
	}
	return nil
}

func unmountPods(ctx context.Context, s streams, o unmountOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	rootDir, err := checkRootDir(o.rootDir)
	if err != nil {
		return err
	}
	if o.volumeDirs, err = checkVolumeDirs(o.volumeDirs); err != nil {
		return err
	}
	printer := rows.NewPrinter(o.output, s.out, s.err)
	selected, err := selectPods(ctx, s, o)
	if err != nil {
		return err
	}
	if _, err := os.Stat(rootDir); errors.Is(err, fs.ErrNotExist) {
		plaintext.Line(s.err, "Nothing to unmount: %s does not exist.", rootDir)
		if len(o.pods) > 0 || len(o.uids) > 0 {
			return errors.Join(printer.Close(), errReported)
		}
		return printer.Close()
	}
	if err := mayMount(); err != nil {
		return err
	}
	drivers, err := o.plugins.Plugins(ctx, false, s.logger())
	if err != nil {
		return err
	}
	node, err := standalone.StartNode(ctx, standalone.NodeConfig{
		RootDir: rootDir, NodeName: "localhost", Objects: objects.NewStore(), Plugins: drivers, DetachTimeout: o.timeout,
		Logger: s.logger(),
	})
	if err != nil {
		return err
	}
	return unmountSelected(ctx, s, o, rootDir, node, selected, printer)
}

// unmountSelected tears the selected pods down, says what came of it, and stops the node.
func unmountSelected(ctx context.Context, s streams, o unmountOptions, rootDir string, node *standalone.Node, selected *selection, printer rows.Printer) error {
	mounted := node.Explain()
	if err := selected.ambiguous(mounted); err != nil {
		return errors.Join(err, node.Stop())
	}
	volumes := selected.choose(mounted)
	absent := selected.absent(mounted)
	o.plugins.Missing(volumes).Tell(s.err)
	if len(volumes) == 0 {
		plaintext.Line(s.err, "Nothing to unmount below %s.", rootDir)
	}
	unmounting, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	expected := make([]rows.Key, len(volumes))
	for i, v := range volumes {
		expected[i] = rows.KeyOf(v)
	}
	printed := report.New(printer, s.err, volumemanager.StateUnmounted, expected)
	printed.Interrupted = func() error { return context.Cause(ctx) }
	err := printed.Run(node.Manager, func(show func(volumemanager.VolumeStatus)) { node.TearDownPods(unmounting, volumes, show) })
	if err := errors.Join(err, node.Stop()); err != nil {
		return err
	}
	if ctx.Err() != nil {
		plaintext.Line(s.err, "podvol: %s", printed.Conclusion(""))
		return errReported
	}
	gone := deleteEphemeral(ctx, s, o, rootDir, selected)
	for _, text := range absent {
		s.say("%s", text)
	}
	if len(absent) > 0 || len(volumes) == 0 && !o.all {
		tellMounted(s.err, rootDir, slices.DeleteFunc(mounted, func(v volumemanager.VolumeStatus) bool { return !selected.leaves(v) }))
	}
	if printed.Failed || len(absent) > 0 {
		return reportedAlso(s, gone)
	}
	if o.all && o.nodeName == "" {
		return errors.Join(gone, leftAlone(rootDir))
	}
	return gone
}

// deleteEphemeral deletes the claims that were made for the pods selected, but
// for those of which something is mounted still.
func deleteEphemeral(ctx context.Context, s streams, o unmountOptions, rootDir string, selected *selection) error {
	left, err := standalone.MountedBelow(rootDir, host.New(host.Config{}))
	if err != nil && !errors.Is(err, embedded.ErrIncomplete) {
		return err // else claims are refused, if there are any
	}
	nodeName, err := nodeNameOr(selected.nodeName)
	if err != nil {
		return err
	}
	claims := ephemeralClaims{
		options: changeOptions{rootDir: rootDir, nodeName: nodeName, volumeDirs: o.volumeDirs, timeout: o.timeout},
		deleted: s.err, kept: s.err, wait: min(o.timeout, claimsWait),
		whose: func(pod types.NamespacedName, uid types.UID) bool {
			return selected.owns(pod, uid) &&
				!slices.ContainsFunc(left, func(m embedded.Mounted) bool { return m.PodUID == uid })
		},
	}
	return claims.delete(ctx)
}

// reportedAlso prints an error beside those that are printed already.
func reportedAlso(s streams, err error) error {
	if err != nil {
		s.fail(err)
	}
	return errReported
}

// leftAlone is an error when volumes without a record are left below the root:
// whoever unmounts all of them should know.
func leftAlone(rootDir string) error {
	mounts := table.Kernel()
	left, err := volumemanager.Inspect(rootDir, mounts)
	if len(left) == 0 {
		return err
	}
	return errors.Join(fmt.Errorf("%d volumes below %s were left alone, since podvol has no record of them; %s status shows them",
		len(left), rootDir, shellJoin(programName(os.Args[0]))), err)
}
