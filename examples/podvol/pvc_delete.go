package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/examples/podvol/internal/completion"
	"github.com/podvol/podvol/examples/podvol/internal/kubectlget"
	"github.com/podvol/podvol/examples/podvol/internal/ownplugins"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/plugins/hostpath"
	"github.com/podvol/podvol/volume/standalone"
	"github.com/podvol/podvol/volume/volumemanager"
)

// changeOptions are the flags of the commands that change records.
type changeOptions struct {
	rootDir, nodeName string
	volumeDirs        []string
	files             []string // which have secrets
	dryRun            bool
	timeout           time.Duration
	plugins           ownplugins.Options
}

func (o *changeOptions) add(flags *pflag.FlagSet) {
	flags.BoolVar(&o.dryRun, "dry-run", false, "only print what would be done")
	flags.StringArrayVarP(&o.files, "filename", "f", nil, "manifest file, directory of manifests, or - for standard input, with the Secrets that drivers need (repeatable)")
	addNodeName(flags, &o.nodeName, "this node's name, if mount or run-node was given one")
	flags.DurationVar(&o.timeout, "timeout", kubeletPodWait, "how long to wait for storage to be deleted")
	addVolumeDirs(flags, &o.volumeDirs)
	o.plugins.AddDrivers(flags, usagef)
	addRootDir(flags, &o.rootDir)
}

// check completes the options.
func (o *changeOptions) check() (err error) {
	if o.timeout <= 0 {
		return usagef("--timeout %s must be positive", o.timeout)
	}
	if o.nodeName, err = nodeNameOr(o.nodeName); err != nil {
		return err
	}
	if o.volumeDirs, err = checkVolumeDirs(o.volumeDirs); err != nil {
		return err
	}
	o.rootDir, err = checkRootDir(o.rootDir)
	return err
}

func pvcDeleteCommand(s streams) *cobra.Command {
	var o changeOptions
	namespace := ""
	c := &cobra.Command{
		Use:   "delete NAMESPACE/NAME…",
		Short: "Delete claims that no pod uses",
		Long: "Deletes claims, and does with their volumes what the reclaim policy says: Delete\n" +
			"deletes the volume and its data, Recycle empties it, Retain keeps it as it is for\n" +
			"podvol pv release or podvol pv delete. A claim that a pod has mounted on this\n" +
			"machine is refused: unmount it first. While podvol run-node runs, take the claim\n" +
			"out of its manifests instead. Of a claim that is gone, though its volume could not\n" +
			"be deleted, it names the command that does that.\n\n" +
			"Exit code: 0 when all that was to go has gone, else 1; 2 for a wrong command line.",
		Example: "  podvol pvc delete ops-test/nfs-211 --dry-run\n" +
			"  podvol pvc delete ops-test/nfs-211",
		RunE:              func(c *cobra.Command, words []string) error { return deletePVCs(c.Context(), s, o, namespace, words) },
		ValidArgsFunction: completion.Claims,
	}
	c.Flags().StringVarP(&namespace, "namespace", "n", v1.NamespaceDefault, "the namespace of claims that are named without one")
	o.add(c.Flags())
	return c
}

func deletePVCs(ctx context.Context, s streams, o changeOptions, namespace string, words []string) error {
	if err := o.check(); err != nil {
		return err
	}
	if len(words) == 0 {
		return usagef("name the claims to delete, as NAMESPACE/NAME")
	}
	found := readStored(o.rootDir)
	if found.damaged != nil {
		return found.damaged
	}
	claims, missing, err := pvcOptions{namespace: namespace}.choose(found, words)
	if err != nil {
		return err
	}
	missing = append(missing, o.unreclaimed(found, namespace, words)...)
	d := &deletion{streams: s, options: o, before: found}
	for _, claim := range claims {
		d.refs = append(d.refs, volume.NewObjectRef(kubectlget.ClaimKind.Kind, claim.Namespace, claim.Name))
		d.volumes = append(d.volumes, found.volumesOf(claim)...)
	}
	return errors.Join(append(missing, d.run(ctx))...)
}

// unreclaimed tells of claims that are gone, but whose volumes are not though they
// were to go with them, how that is ended.
func (o changeOptions) unreclaimed(found stored, namespace string, words []string) (all []error) {
	for _, word := range words {
		name, err := claimName(word, namespace)
		if err != nil || found.claim(name) != nil {
			continue
		}
		for _, pv := range found.volumes {
			ref := pv.Spec.ClaimRef
			if ref == nil || ref.UID == "" || ref.Namespace != name.Namespace || ref.Name != name.Name || !ownplugins.DeletesStorage(pv) {
				continue
			}
			all = append(all, fmt.Errorf("PersistentVolume %s, %s, which PersistentVolumeClaim %s had, is still there%s; %s deletes it and its data",
				pv.Name, sourceOf(pv), name, because(pv), o.deleteCommand(pv)))
		}
	}
	return all
}

// because is why a volume is still there, as far as it says that.
func because(pv *v1.PersistentVolume) string {
	if pv.Status.Message == "" {
		return fmt.Sprintf(" and %s", pv.Status.Phase)
	}
	return ": " + pv.Status.Message
}

// volumesOf returns the volumes that are a claim's, or will be.
func (s stored) volumesOf(claim *v1.PersistentVolumeClaim) (all []*v1.PersistentVolume) {
	for _, pv := range s.volumes {
		if ref := pv.Spec.ClaimRef; ref != nil && ref.UID == claim.UID {
			all = append(all, pv)
		}
	}
	return all
}

// deletion deletes claims or volumes, and tells what became of the volumes.
type deletion struct {
	streams
	options changeOptions
	// keepData has volumes go without their storage.
	keepData bool
	before   stored
	refs     []volume.ObjectRef
	volumes  []*v1.PersistentVolume // of refs, and of the claims in it
	// mayGo, if any, is asked before each; what may not go is left alone.
	mayGo func(context.Context, *embedded.Cluster, volume.ObjectRef) bool

	missing missingStorage
}

func (d *deletion) run(ctx context.Context) error {
	if len(d.refs) == 0 {
		return nil
	}
	for _, pv := range d.volumes {
		if err := checkNode(d.asDeleted(pv), d.options.nodeName); err != nil {
			return err
		}
	}
	if d.options.dryRun {
		return d.rehearse(ctx)
	}
	only := make(map[volume.ObjectRef]bool)
	for _, ref := range d.refs {
		only[ref] = true
	}
	for _, pv := range d.volumes {
		only[volume.NewObjectRef(kubectlget.VolumeKind.Kind, "", pv.Name)] = true
	}
	var errs []error
	var begun []volume.ObjectRef
	err := d.options.change(ctx, d.streams, only, &d.missing, func(c *embedded.Cluster) error {
		for _, ref := range d.refs {
			if d.mayGo != nil && !d.mayGo(ctx, c, ref) {
				continue
			}
			if err := d.delete(ctx, c, ref); err != nil {
				errs = append(errs, err)
				continue
			}
			begun = append(begun, ref)
		}
		if len(begun) == 0 {
			return errNothingBegun
		}
		c.PodsComplete()
		return nil
	})
	if err != nil && !errors.Is(err, errNothingBegun) {
		return errors.Join(append(errs, err)...)
	}
	return errors.Join(append(errs, d.report(begun))...)
}

func (d *deletion) delete(ctx context.Context, c *embedded.Cluster, ref volume.ObjectRef) error {
	if d.keepData {
		return c.Forget(ctx, ref.Name)
	}
	return c.Delete(ctx, ref)
}

var errNothingBegun = errors.New("nothing was begun")

// change opens the root directory's claims for f, and then lets happen what
// follows, for these objects only.
func (o changeOptions) change(ctx context.Context, s streams, only map[volume.ObjectRef]bool, events persistentvolume.EventRecorder, f func(*embedded.Cluster) error) (err error) {
	log := s.logger()
	made, err := o.plugins.ForClaims(ctx, log)
	if err != nil {
		return err
	}
	secrets, err := o.secrets(ctx, s)
	if err != nil {
		return err
	}
	// Only the owner of the root directory may mount: no other process does meanwhile.
	config := standalone.NodeConfig{RootDir: o.rootDir, NodeName: o.nodeName, Objects: objects.NewStore(), Logger: log}
	node, err := standalone.StartNode(ctx, config)
	if errors.Is(err, volumemanager.ErrRootBusy) {
		return fmt.Errorf("%w; if that is podvol run-node, it deletes the claims that you take out of its manifests, "+
			"and for anything else it can be stopped meanwhile: mounts stay", err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Stop()) }()
	cluster, err := standalone.OpenClaims(ctx, standalone.ClaimsConfig{
		RootDir: o.rootDir, Node: config, Manager: "podvol delete", Events: events, Logger: log, VolumeDirs: o.volumeDirs, Plugins: made,
		Only: func(ref volume.ObjectRef) bool { return only[ref] },
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	if err := cluster.Apply(ctx, secrets...); err != nil { // which keeps no secret
		return err
	}
	if err := f(cluster); err != nil {
		return err
	}
	_, stop := standalone.InBackground(ctx, cluster.Run)
	waiting, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	err = cluster.Idle(waiting)
	return errors.Join(err, stop())
}

// secrets returns the Secrets of the manifests, and ignores the other objects.
func (o changeOptions) secrets(ctx context.Context, s streams) ([]metav1.Object, error) {
	if len(o.files) == 0 {
		return nil, nil
	}
	set, err := load(ctx, manifest.Loader{NodeName: o.nodeName, Stdin: s.in}, o.files)
	if err != nil {
		return nil, err
	}
	return set.List(ctx, "Secret", metav1.NamespaceAll)
}

// rehearse prints what would be done.
func (d *deletion) rehearse(ctx context.Context) error {
	checks, err := d.before.checks(ctx, d.options.rootDir)
	if err != nil {
		return err
	}
	var errs []error
	for _, ref := range d.refs {
		if err := checks.Delete(ctx, ref); err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Fprintln(d.out, deletedText(ref)+" (dry run)")
		for _, pv := range d.volumesOfRef(ref) {
			printNote(d.err, pv.Name, plannedFate(d.asDeleted(pv), ref.Kind == kubectlget.VolumeKind.Kind))
		}
	}
	return errors.Join(errs...)
}

// checks are those that a change would be subject to, by what is recorded and
// mounted.
func (s stored) checks(ctx context.Context, rootDir string) (embedded.Checks, error) {
	all := make([]metav1.Object, 0, len(s.claims)+len(s.volumes))
	for _, claim := range s.claims {
		all = append(all, claim)
	}
	for _, pv := range s.volumes {
		all = append(all, pv)
	}
	store := objects.NewStore()
	return embedded.Checks{Objects: store, Mounted: func(context.Context) ([]embedded.Mounted, error) {
		mounted, err := standalone.MountedBelow(rootDir, host.New(host.Config{}))
		if err != nil {
			return nil, err
		}
		users, err := embedded.ReadUsers(standalone.ClaimsDir(rootDir))
		return append(mounted, users...), err
	}}, store.Load(ctx, 0, all...)
}

// asDeleted is a volume with the reclaim policy by which it is deleted.
func (d *deletion) asDeleted(pv *v1.PersistentVolume) *v1.PersistentVolume {
	if !d.keepData {
		return pv
	}
	kept := pv.DeepCopy()
	kept.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
	return kept
}

// goOn says how a volume is deleted where the same command again would not do it: its
// claim is gone, or it was made in a directory that was not named.
func (o changeOptions) goOn(ref volume.ObjectRef, pv *v1.PersistentVolume) string {
	if ref.Kind == kubectlget.VolumeKind.Kind && o.unnamedDir(pv) == "" && ownplugins.DriverOf(pv) == "" || !ownplugins.DeletesStorage(pv) {
		return ""
	}
	return fmt.Sprintf("; %s deletes it", o.deleteCommand(pv))
}

// deleteCommand deletes a volume, also one that was made in a directory that was not
// named.
func (o changeOptions) deleteCommand(pv *v1.PersistentVolume) string {
	words := append(programName(os.Args[0]), "pv", "delete", pv.Name, "--root-dir", o.rootDir)
	if base := o.unnamedDir(pv); base != "" {
		words = append(words, "--volume-dir", base)
	}
	return shellJoin(append(words, ownplugins.FlagFor(pv)...))
}

// unnamedDir is the directory where a volume was made, if it was not named.
func (o changeOptions) unnamedDir(pv *v1.PersistentVolume) string {
	base := pv.Annotations[hostpath.BaseAnnotation]
	known := func(dir string) bool { return pathin.In(dir, base) }
	if base == "" || slices.ContainsFunc(append(slices.Clone(o.volumeDirs), hostpath.DefaultBase(o.rootDir).Path), known) {
		return ""
	}
	return base
}

func (d *deletion) volumesOfRef(ref volume.ObjectRef) []*v1.PersistentVolume {
	if ref.Kind == kubectlget.ClaimKind.Kind {
		return d.before.volumesOf(d.before.claim(ref.NamespacedName))
	}
	return []*v1.PersistentVolume{d.before.volume(ref.Name)}
}

// report tells what has gone, and what became of volumes.
func (d *deletion) report(begun []volume.ObjectRef) error {
	now := readStored(d.options.rootDir)
	if now.damaged != nil {
		// What cannot be read is not gone.
		return fmt.Errorf("cannot check which volumes are deleted: %w", now.damaged)
	}
	var errs []error
	for _, ref := range begun {
		left := ref.Kind == kubectlget.ClaimKind.Kind && now.claim(ref.NamespacedName) != nil || ref.Kind == kubectlget.VolumeKind.Kind && now.volume(ref.Name) != nil
		if !left {
			fmt.Fprintln(d.out, deletedText(ref))
		} else if ref.Kind == kubectlget.ClaimKind.Kind {
			errs = append(errs, fmt.Errorf("%s is still being deleted; try again", ref))
		}
		if ref.Kind == kubectlget.ClaimKind.Kind {
			if text := d.before.lostVolume(d.before.claim(ref.NamespacedName)); text != "" {
				printNote(d.err, ref.Name, text)
			}
		}
		for _, pv := range d.volumesOfRef(ref) {
			after := now.volume(pv.Name)
			if after != nil && (!left && isUnfinished(after) || isUnreclaimed(after) || left && ref.Kind == kubectlget.VolumeKind.Kind) {
				errs = append(errs, fmt.Errorf("PersistentVolume %s, %s, is still there%s%s", pv.Name, sourceOf(pv), because(after), d.options.goOn(ref, after)+wayOut(after)))
				continue
			}
			printNote(d.err, pv.Name, fate(d.asDeleted(pv), after, d.missing.has(pv.Name)))
		}
	}
	return errors.Join(errs...)
}

// checkNode refuses to delete storage by a name of this machine under which it
// cannot be reached: podvol mount may have made it under another one, which the
// manifests gave.
func checkNode(pv *v1.PersistentVolume, nodeName string) error {
	if !ownplugins.DeletesStorage(pv) || ownplugins.DriverOf(pv) != "" { // whose driver knows
		return nil
	}
	if reachable, err := claimbinding.MatchesNode(pv, nil, nodeName); err != nil || reachable {
		return err
	}
	flag := "--node"
	if names := hostsOf(pv); len(names) > 0 {
		flag += " " + strings.Join(names, ", or --node ")
	}
	return fmt.Errorf("the storage of PersistentVolume %q cannot be reached from node %q, so that nothing is deleted: "+
		"if this machine was named otherwise when it was made, say %s", pv.Name, nodeName, flag)
}

// hostsOf returns the names of the nodes from which a volume can be reached, if
// they are known.
func hostsOf(pv *v1.PersistentVolume) (names []string) {
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range slices.Concat(term.MatchExpressions, term.MatchFields) {
			if (e.Key == v1.LabelHostname || e.Key == "metadata.name") && e.Operator == v1.NodeSelectorOpIn {
				names = append(names, e.Values...)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
