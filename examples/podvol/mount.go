package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/examples/podvol/internal/choice"
	"github.com/podvol/podvol/examples/podvol/internal/completion"
	"github.com/podvol/podvol/examples/podvol/internal/ownplugins"
	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/examples/podvol/internal/report"
	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/standalone"
	"github.com/podvol/podvol/volume/volumemanager"
)

// mountOptions are the flags of podvol mount.
type mountOptions struct {
	files    []string
	rootDir  string
	nodeName string
	pod      string
	fake     bool
	output   string
	timeout  time.Duration

	volumeDirs []string
	plugins    ownplugins.Options
	// claimPlugins are those of plugins that make volumes.
	claimPlugins []volume.VolumePlugin
}

// kubeletPodWait is how long a kubelet waits for a pod's volumes.
const kubeletPodWait = 2*time.Minute + 3*time.Second

// lastWord is how long an attempt that has run out of time may take to say what
// it was waiting for.
const lastWord = 2 * time.Second

func mountCommand(s streams) *cobra.Command {
	var o mountOptions
	c := &cobra.Command{
		Use:   "mount -f FILE|DIR|- [-f …]",
		Short: "Mount the volumes of the pods in manifests",
		Long: "Mounts the volumes of every pod in the manifests, and of every replica of the\n" +
			"workloads in them, and prints one row per volume; those that no container mounts\n" +
			"are not used, and left alone. A second call refreshes what is there and repairs\n" +
			"what failed; pods that are not in the manifests are left alone.\n\n" +
			"Claims and PersistentVolumes are kept below the root directory, and manifests\n" +
			"applied to them, as by kubectl apply. Claims that are not bound are bound first,\n" +
			"by the rules of Kubernetes, or get a volume made where their storage class says\n" +
			"so (kubernetes.io/nfs, kubernetes.io/host-path). They stay bound whatever later\n" +
			"manifests say, and nothing is deleted: see podvol pvc and podvol pv.\n\n" +
			"Exit code: 0 when all volumes in use are mounted, 1 when some are not, 2 for a wrong\n" +
			"command line or manifest.",
		Example: "  podvol mount -f testdata/web.yaml\n" +
			"  podvol mount --fake -f testdata/web.yaml    # only show what would be done",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return mountPods(c.Context(), s, o) },
	}
	flags := c.Flags()
	flags.StringArrayVarP(&o.files, "filename", "f", nil, "manifest file, directory of manifests, or - for standard input (repeatable)")
	addNodeName(flags, &o.nodeName, "this node's name; pods of other nodes are left out (default: the node that the manifests name, else the host name)")
	flags.StringVar(&o.pod, "pod", "", "mount only this pod, as NAMESPACE/NAME")
	flags.BoolVar(&o.fake, "fake", false, "mount nothing: print the commands that would run, and touch nothing outside a temporary directory")
	choice.AddOutput(c, &o.output, rows.Formats()...)
	flags.DurationVar(&o.timeout, "timeout", kubeletPodWait, "how long to wait for all volumes")
	addVolumeDirs(flags, &o.volumeDirs)
	o.plugins.Add(flags, usagef)
	addRootDir(flags, &o.rootDir)
	completion.OfManifests(c)
	return c
}

// check completes the options.
func (o *mountOptions) check() (err error) {
	if o.timeout <= 0 {
		return usagef("--timeout %s must be positive", o.timeout)
	}
	if o.rootDir, err = checkShownRootDir(o.rootDir, o.fake); err != nil {
		return err
	}
	o.volumeDirs, err = checkNewVolumeDirs(o.volumeDirs)
	return err
}

func mountPods(ctx context.Context, s streams, o mountOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	replacements, err := o.plugins.Plugins(ctx, o.fake, s.logger())
	if err != nil {
		return err
	}
	if o.claimPlugins, err = o.plugins.ForClaims(ctx, s.logger()); err != nil {
		return err
	}
	set, pods, err := loadPods(ctx, s, o.files, o.nodeName, o.pod)
	if err != nil {
		return err
	}
	where, err := newPlace(o.rootDir, o.fake)
	if err != nil {
		return err
	}
	defer where.close()
	where.order = volumesOf(pods)
	config := where.config(set.NodeName, set)
	config.Logger = s.logger()
	config.Events = loggedEvents{config.Logger, where.rename}
	config.SetUpTimeout, config.Plugins, config.Translator = o.timeout, replacements, o.plugins.Translator()
	printed := report.New(rows.NewPrinter(o.output, s.out, s.err), s.err, volumemanager.StateMounted, volumesOf(pods))
	printed.EditRow = where.editRow
	printed.Interrupted = func() error { return context.Cause(ctx) }
	if err := mountWith(ctx, config, o, set, pods, printed); err != nil {
		return err
	}
	where.printCommands(s.err)
	undo := ""
	if !o.fake && printed.Something {
		undo = unmountCommandLine(o, pods)
	}
	switch {
	case ctx.Err() != nil && printed.Failed:
		plaintext.Line(s.err, "podvol: %s", printed.Conclusion(undo))
	case undo != "":
		plaintext.Line(s.err, "To unmount: %s", undo)
	}
	if printed.Failed {
		return errReported
	}
	return nil
}

// mountWith binds the pods' claims and mounts their volumes; what becomes of these
// is printed.
func mountWith(ctx context.Context, config standalone.NodeConfig, o mountOptions, set *manifest.Set, pods []*v1.Pod, printed *report.Report) error {
	store := objects.NewStore()
	if standalone.UsesClaims(pods) {
		config.Objects = store
		config.Resizes = standalone.ClosedClaims{RootDir: config.RootDir, Node: config, VolumeDirs: o.volumeDirs, Plugins: o.claimPlugins, Logger: config.Logger}
	}
	node, err := standalone.StartNode(ctx, config)
	if err != nil {
		return err
	}
	var unbound standalone.UnboundClaims
	if standalone.UsesClaims(pods) {
		cluster := standalone.ClaimsConfig{RootDir: config.RootDir, Node: config, Store: store, Manager: "podvol mount", VolumeDirs: o.volumeDirs, Plugins: o.claimPlugins, Logger: config.Logger}
		if unbound, err = standalone.BindClaims(ctx, cluster, set, pods, o.timeout); err != nil {
			return errors.Join(err, node.Stop())
		}
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout+lastWord)
	defer cancel()
	printed.Edit = func(v *volumemanager.VolumeStatus) { v.Err = unbound.Explain(v.Err) }
	err = printed.Run(node.Manager, func(show func(volumemanager.VolumeStatus)) { setUpPods(ctx, node, pods, show) })
	return errors.Join(err, node.Stop())
}

// load reads manifests, but waits for standard input or a pipe only as long as
// no signal interrupts.
func load(ctx context.Context, loader manifest.Loader, files []string) (set *manifest.Set, err error) {
	read := make(chan struct{})
	var loaded *manifest.Set
	var loadErr error
	go func() {
		defer close(read)
		loaded, loadErr = loader.Load(files...)
	}()
	select {
	case <-read:
	case <-ctx.Done():
		return nil, fmt.Errorf("interrupted while reading manifests: %w", context.Cause(ctx))
	}
	if loadErr != nil {
		return nil, &usageError{loadErr}
	}
	return loaded, nil
}

// setUpPods sets all pods up at once.
func setUpPods(ctx context.Context, node *standalone.Node, pods []*v1.Pod, show func(volumemanager.VolumeStatus)) {
	var all sync.WaitGroup
	for _, pod := range pods {
		all.Go(func() {
			// The error is in the rows.
			volumes, _ := node.SetUpPod(ctx, pod)
			for _, v := range volumes.Volumes {
				show(v)
			}
		})
	}
	all.Wait()
}

// volumesOf lists the rows to expect, in the manifests' order.
func volumesOf(pods []*v1.Pod) (expected []rows.Key) {
	for _, pod := range pods {
		for _, v := range pod.Spec.Volumes {
			expected = append(expected, rows.Key{Pod: pod.UID, Volume: v.Name})
		}
	}
	return expected
}

// unmountCommandLine is what undoes this mount.
func unmountCommandLine(o mountOptions, pods []*v1.Pod) string {
	words := append(programName(os.Args[0]), "unmount")
	if slices.Contains(o.files, "-") {
		// Standard input is gone by then.
		for _, pod := range pods {
			words = append(words, "--pod", pod.Namespace+"/"+pod.Name)
		}
	} else {
		for _, file := range o.files {
			words = append(words, "-f", file)
		}
		if o.pod != "" {
			words = append(words, "--pod", o.pod)
		}
	}
	if o.nodeName != "" {
		words = append(words, "--node", o.nodeName)
	}
	for _, dir := range o.volumeDirs { // whence ephemeral volumes go
		words = append(words, "--volume-dir", dir)
	}
	if o.rootDir != defaultRootDir() {
		words = append(words, "--root-dir", o.rootDir)
	}
	words = append(words, o.plugins.DriverArgs()...) // only a driver can undo its mounts
	return shellJoin(words)
}

// loadPods reads the manifests and selects the pods; every error is the
// user's to mend.
func loadPods(ctx context.Context, s streams, files []string, nodeName, only string) (*manifest.Set, []*v1.Pod, error) {
	if len(files) == 0 {
		return nil, nil, usagef("name at least one manifest with -f")
	}
	set, err := load(ctx, manifest.Loader{NodeName: nodeName, Stdin: s.in}, files)
	if err != nil {
		return nil, nil, err
	}
	for _, skipped := range set.Skipped {
		s.say("%s", skipped)
	}
	pods := set.Pods()
	if only != "" {
		name, err := parsePod(only)
		if err != nil {
			return nil, nil, err
		}
		var others []string
		pods = slices.DeleteFunc(pods, func(p *v1.Pod) bool {
			others = append(others, p.Namespace+"/"+p.Name)
			return p.Namespace != name.Namespace || p.Name != name.Name
		})
		if len(pods) == 0 {
			return nil, nil, usagef("the manifests have no pod %s for node %s%s", name, set.NodeName, choice.Meant(only, others))
		}
	}
	if len(pods) == 0 {
		return nil, nil, usagef("the manifests have no pod for node %s", set.NodeName)
	}
	return set, pods, nil
}
