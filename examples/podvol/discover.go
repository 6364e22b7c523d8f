package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/podvol/podvol/examples/podvol/internal/choice"
	"github.com/podvol/podvol/examples/podvol/internal/kubectlget"
	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/localdiscovery"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins/local"
)

// discoverOptions are the flags of podvol discover.
type discoverOptions struct {
	dir, class, nodeName, output string
	mode, fsType                 string
	watch                        bool
}

func discoverCommand(s streams) *cobra.Command {
	var o discoverOptions
	c := &cobra.Command{
		Use:   "discover --dir DIR --class NAME",
		Short: "Print the disks below a directory as PersistentVolumes",
		Long: "Prints a PersistentVolume for every file system that is mounted directly below a\n" +
			"directory, and for every block device there, be it a node or a link to one, as a\n" +
			"manifest: for podvol mount -f -, or a file in the directory of podvol run-node.\n" +
			"Devices are offered as such, or with --mode filesystem to be given a file system\n" +
			"when they are used first. Disks that are not offered, and why, go to standard error.\n" +
			"The volumes are local ones of this node, and keep their data when they are\n" +
			"released. Nothing is changed.\n\n" +
			"With --watch it goes on to print those that come later, until it is stopped; it\n" +
			"does nothing while no mount and no device changes. podvol run-node --discover\n" +
			"offers them without a manifest.",
		Example: "  podvol discover --dir /mnt/disks --class local > /etc/podvol/manifests/disks.yaml\n" +
			"  cat <(podvol discover --dir /mnt/disks --class local) pod.yaml | podvol mount -f -",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return discover(c.Context(), s, o) },
	}
	flags := c.Flags()
	flags.StringVar(&o.dir, "dir", "", "directory below which disks are mounted, or linked as devices, such as /mnt/disks")
	flags.StringVar(&o.mode, "mode", "", "offer only devices, as such (block), or all as file systems (filesystem); default: each as it is")
	flags.StringVar(&o.fsType, "fstype", "", "file system that blank devices are given, with --mode filesystem (default: ext4)")
	flags.StringVar(&o.class, "class", "", "storage class of the volumes; one with volumeBindingMode WaitForFirstConsumer")
	addNodeName(flags, &o.nodeName, "this node's name (default: the host name)")
	flags.BoolVar(&o.watch, "watch", false, "print later mounts too, until stopped")
	choice.AddOutput(c, &o.output, "yaml", "json")
	return c
}

// check completes the options.
func (o *discoverOptions) check() (err error) {
	if o.class == "" {
		return usagef("name the storage class of the volumes with --class")
	}
	if o.mode != "" && o.mode != "block" && o.mode != "filesystem" {
		return usagef("--mode %q must be block or filesystem", o.mode)
	}
	if o.fsType != "" && o.mode != "filesystem" {
		return usagef("--fstype needs --mode filesystem")
	}
	if o.dir, err = disksDir("--dir", o.dir); err != nil {
		return err
	}
	o.nodeName, err = nodeNameOr(o.nodeName)
	return err
}

func (o *discoverOptions) volumeClass() localdiscovery.Class {
	class := localdiscovery.Class{Dir: o.dir, StorageClass: o.class, FSType: o.fsType}
	switch o.mode {
	case "block":
		class.VolumeMode = v1.PersistentVolumeBlock
	case "filesystem":
		class.VolumeMode = v1.PersistentVolumeFilesystem
	}
	return class
}

// disksDir returns the directory that a flag names as the mount table shows it.
func disksDir(flag, dir string) (string, error) {
	if dir == "" {
		return "", usagef("name the directory below which disks are mounted with %s", flag)
	}
	abs, err := filepath.Abs(dir)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", usagef("%s %s: %w", flag, dir, err)
	}
	return abs, nil
}

// nodeNameOr returns a name that was given, or this machine's.
func nodeNameOr(name string) (string, error) {
	if name != "" {
		return name, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", usagef("this machine's name is not known: %w; say which node this is with --node", err)
	}
	return strings.ToLower(host), nil
}

func discover(ctx context.Context, s streams, o discoverOptions) error {
	if err := o.check(); err != nil {
		return err
	}
	mounts := table.Kernel()
	return discoverIn(ctx, s, o, mounts)
}

// discoverIn prints what a mount table shows.
func discoverIn(ctx context.Context, s streams, o discoverOptions, table mount.Table) error {
	store := objects.NewStore()
	d := &localdiscovery.Discoverer{
		Objects: store, Mounts: table, NodeName: o.nodeName,
		Classes: []localdiscovery.Class{o.volumeClass()},
	}
	p := &manifestPrinter{out: s.out, format: o.output, printed: make(map[string]bool)}
	if o.watch {
		d.Logger = s.logger()
		return watchDisks(ctx, d, store, p)
	}
	found, failed := d.Discover(ctx)
	if err := p.printNew(ctx, store); err != nil {
		return err
	}
	for _, f := range found {
		if f.State == localdiscovery.StateRefused { // what has failed is in the error
			printNote(s.err, f.Path, "not offered: "+f.Err.Error())
		}
	}
	if failed == nil && len(p.printed) == 0 {
		plaintext.Line(s.err, "No disk to offer is directly below %s.", o.dir)
	}
	return failed
}

// watchDisks prints volumes as they are offered, until ctx ends.
func watchDisks(ctx context.Context, d *localdiscovery.Discoverer, store *objects.Store, p *manifestPrinter) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	news := make(chan struct{}, 1)
	defer store.WatchKind("PersistentVolume", func(volume.ObjectRef) {
		select {
		case news <- struct{}{}:
		default:
		}
	})()
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	for {
		select {
		case <-news:
			if err := p.printNew(ctx, store); err != nil && ctx.Err() == nil {
				cancel()
				return errors.Join(err, <-ended)
			}
		case err := <-ended:
			return err
		}
	}
}

// manifestPrinter prints volumes as manifests, each once.
type manifestPrinter struct {
	out     io.Writer
	format  string
	printed map[string]bool
}

// printNew prints what it has not yet printed, in the order of paths.
func (p *manifestPrinter) printNew(ctx context.Context, store *objects.Store) error {
	volumes, err := objects.List[*v1.PersistentVolume](ctx, store, "PersistentVolume", metav1.NamespaceAll)
	if err != nil {
		return err
	}
	slices.SortFunc(volumes, func(a, b *v1.PersistentVolume) int { return cmp.Compare(a.Spec.Local.Path, b.Spec.Local.Path) })
	for _, pv := range volumes {
		if p.printed[pv.Name] {
			continue
		}
		p.printed[pv.Name] = true
		text, err := p.manifest(pv)
		if err != nil {
			return err
		}
		if _, err := p.out.Write(text); err != nil {
			return err
		}
	}
	return nil
}

// manifest leaves out what a store has put in.
func (p *manifestPrinter) manifest(pv *v1.PersistentVolume) ([]byte, error) {
	pv = pv.DeepCopy()
	pv.UID, pv.ResourceVersion, pv.CreationTimestamp, pv.Status = "", "", metav1.Time{}, v1.PersistentVolumeStatus{}
	document, err := kubectlget.DocumentOf(pv, kubectlget.VolumeKind.Kind)
	if err != nil {
		return nil, err
	}
	delete(document, "status")
	if p.format == "json" {
		text, err := json.Marshal(document)
		return append(text, '\n'), err
	}
	text, err := yaml.Marshal(document)
	return bytes.Join([][]byte{[]byte("---\n"), text}, nil), err
}

// addDiscover adds --discover.
func addDiscover(flags *pflag.FlagSet, classes *[]string) {
	flags.StringArrayVar(classes, "discover", nil, "`DIR=CLASS`: offer the disks that are mounted directly below DIR, now or later, as local volumes of that storage class (repeatable)")
}

// addCleanDisks adds --clean-disks.
func addCleanDisks(flags *pflag.FlagSet, action *string) {
	flags.StringVar(action, "clean-disks", "",
		"what is done with the data of disks that --discover offers from now on, once their claim is deleted: `dry-run` only says what would be deleted, delete empties the file system and offers the disk again; devices are never wiped (default: all is kept)")
}

// cleaning has the volumes of disks cleaned as --clean-disks says, and returns the
// plugin that does it, none where nothing is to be cleaned.
func cleaning(action string, classes []localdiscovery.Class) ([]volume.VolumePlugin, error) {
	what, known := map[string]local.CleanAction{"": local.CleanNever, "dry-run": local.CleanDryRun, "delete": local.CleanDelete}[action]
	switch {
	case !known:
		return nil, usagef("--clean-disks %q must be dry-run or delete", action)
	case what == local.CleanNever:
		return nil, nil
	case len(classes) == 0:
		return nil, usagef("--clean-disks is about the disks of --discover, which is not given")
	}
	config := local.Config{Clean: local.CleanConfig{Action: what}}
	for i := range classes {
		classes[i].ReclaimPolicy = v1.PersistentVolumeReclaimDelete
		config.Clean.Below = append(config.Clean.Below, classes[i].Dir)
	}
	return []volume.VolumePlugin{local.New(config)}, nil
}

// parseDiscover reads the values of --discover.
func parseDiscover(values []string) (classes []localdiscovery.Class, err error) {
	for _, value := range values {
		at := strings.LastIndex(value, "=")
		if at <= 0 || at == len(value)-1 {
			return nil, usagef("--discover %q must be DIR=CLASS", value)
		}
		dir, err := disksDir("--discover", filepath.Clean(value[:at]))
		if err != nil {
			return nil, err
		}
		classes = append(classes, localdiscovery.Class{Dir: dir, StorageClass: value[at+1:]})
	}
	return classes, nil
}
