package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/examples/podvol/internal/completion"
	"github.com/podvol/podvol/examples/podvol/internal/kubectlget"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
)

func pvDeleteCommand(s streams) *cobra.Command {
	var o changeOptions
	var keep keepOptions
	c := &cobra.Command{
		Use:   "delete NAME…",
		Short: "Delete PersistentVolumes that no claim has",
		Long: "Deletes PersistentVolumes. The data of one that a claim has left goes first if its\n" +
			"reclaim policy is Delete; all other data stays where it is. A volume that a claim\n" +
			"has, or that is mounted on this machine, is refused. One that a manifest still\n" +
			"declares, or discovery finds, is made anew, for any claim that it fits: that this\n" +
			"may see what the last one has left must be confirmed with --yes.\n\n" +
			"--keep-data deletes only the PersistentVolume, such as one whose storage cannot\n" +
			"be deleted because its server is no more. The data stays undeleted; that must\n" +
			"be confirmed with --yes.\n\n" +
			"Exit code: 0 when all that was to go has gone, else 1; 2 for a wrong command line.",
		Example: "  podvol pv delete nfs211 --dry-run\n" +
			"  podvol pv delete nfs211\n" +
			"  podvol pv delete nfs211 --keep-data --yes",
		RunE:              func(c *cobra.Command, names []string) error { return deletePVs(c.Context(), s, o, keep, names) },
		ValidArgsFunction: completion.Volumes,
	}
	c.Flags().BoolVar(&keep.data, "keep-data", false, "delete the PersistentVolume only, whatever its reclaim policy says")
	c.Flags().BoolVar(&keep.sure, "yes", false, "confirm: the data stays where it is, or another claim may have it")
	o.add(c.Flags())
	return c
}

// keepOptions are the flags of podvol pv delete that have the storage stay.
type keepOptions struct{ data, sure bool }

func deletePVs(ctx context.Context, s streams, o changeOptions, keep keepOptions, names []string) error {
	if err := o.check(); err != nil {
		return err
	}
	if len(names) == 0 {
		return usagef("name the PersistentVolumes to delete")
	}
	found := readStored(o.rootDir)
	if found.damaged != nil {
		return found.damaged
	}
	d := &deletion{streams: s, options: o, keepData: keep.data, before: found}
	var missing []error
	var err error
	if d.volumes, missing, err = found.chooseVolumes(names); err != nil {
		return err
	}
	for _, pv := range d.volumes {
		d.refs = append(d.refs, volume.NewObjectRef(kubectlget.VolumeKind.Kind, "", pv.Name))
	}
	if err := d.confirmSeen(keep.sure); err != nil {
		return err
	}
	if len(d.volumes) > 0 && keep.data && !keep.sure && !o.dryRun {
		return usagef("the data of PersistentVolume %q stays in %s, and podvol never deletes it: confirm that with --yes", d.volumes[0].Name, sourceOf(d.volumes[0]))
	}
	return errors.Join(append(missing, d.run(ctx))...)
}

// confirmSeen makes the user confirm the deletion of a volume that may be offered again
// with the data of its last claim.
func (d *deletion) confirmSeen(sure bool) error {
	for _, pv := range d.volumes {
		if !showsDataAgain(pv, d.keepData) {
			continue
		}
		what := fmt.Sprintf("what claim %s has left in it, %s", claimText(pv), sourceOf(pv))
		switch {
		case d.options.dryRun:
			printNote(d.err, pv.Name, "once it is declared or found again, another claim could have it, with "+what)
		case !sure:
			return usagef("once PersistentVolume %q is declared or found again, another claim will have it, with %s: confirm that with --yes", pv.Name, what)
		}
	}
	return nil
}

// showsDataAgain reports whether a volume whose storage stays was left by a claim,
// and comes from what may offer it again: a manifest or discovery.
func showsDataAgain(pv *v1.PersistentVolume, keepData bool) bool {
	offered := pv.Annotations["podvol.io/applied-by"] != "" || pv.Annotations["podvol.io/local-volume-id"] != ""
	stays := keepData || pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete
	return offered && stays && pv.Status.Phase == v1.VolumeReleased
}

func pvReleaseCommand(s streams) *cobra.Command {
	var o changeOptions
	yes := false
	c := &cobra.Command{
		Use:   "release NAME --yes",
		Short: "Offer a volume that its claim has left to other claims, with its data",
		Long: "Takes the claimRef of a Released PersistentVolume away, so that it is Available:\n" +
			"the next claim that it fits gets it, with the data that the last one has left in\n" +
			"it. That must be confirmed with --yes. Only volumes with reclaim policy Retain are\n" +
			"released so; of others, data may be gone already.",
		Example: "  podvol pv release nfs211 --dry-run\n" +
			"  podvol pv release nfs211 --yes",
		RunE:              func(c *cobra.Command, names []string) error { return releasePV(c.Context(), s, o, yes, names) },
		ValidArgsFunction: completion.Volumes,
	}
	c.Flags().BoolVar(&yes, "yes", false, "another claim may have the volume's data")
	o.add(c.Flags())
	return c
}

func releasePV(ctx context.Context, s streams, o changeOptions, yes bool, names []string) error {
	if err := o.check(); err != nil {
		return err
	}
	if len(names) != 1 {
		return usagef("name one PersistentVolume to release")
	}
	found := readStored(o.rootDir)
	if found.damaged != nil {
		return found.damaged
	}
	chosen, missing, err := found.chooseVolumes(names)
	if err != nil || len(missing) > 0 {
		return errors.Join(append(missing, err)...)
	}
	pv := chosen[0]
	what := fmt.Sprintf("what claim %s has left in it, %s", claimText(pv), sourceOf(pv))
	if o.dryRun {
		checks, err := found.checks(ctx, o.rootDir)
		if err != nil {
			return err
		}
		if err := checks.Release(ctx, pv.Name); err != nil {
			return err
		}
		fmt.Fprintf(s.out, "%s %q released (dry run)\n", kubectlget.VolumeKind.Singular, pv.Name)
		printNote(s.err, pv.Name, "another claim could have it, with "+what)
		return nil
	}
	if !yes {
		return usagef("another claim will have PersistentVolume %q with %s: confirm that with --yes", pv.Name, what)
	}
	only := map[volume.ObjectRef]bool{volume.NewObjectRef(kubectlget.VolumeKind.Kind, "", pv.Name): true}
	if err := o.change(ctx, s, only, nil, func(c *embedded.Cluster) error { return c.Release(ctx, pv.Name) }); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "%s %q released\n", kubectlget.VolumeKind.Singular, pv.Name)
	return err
}

func claimText(pv *v1.PersistentVolume) string {
	if ref := pv.Spec.ClaimRef; ref != nil {
		return ref.Namespace + "/" + ref.Name
	}
	return "<none>"
}
