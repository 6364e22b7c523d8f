package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/examples/nodehttp/nodeevents"
	"github.com/podvol/podvol/examples/podvol/internal/completion"
	"github.com/podvol/podvol/examples/podvol/internal/describe"
	"github.com/podvol/podvol/examples/podvol/internal/fields"
	"github.com/podvol/podvol/examples/podvol/internal/kubectlget"
	"github.com/podvol/podvol/examples/podvol/internal/nodeserver"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume/volumemanager"
)

func pvcDescribeCommand(s streams) *cobra.Command {
	var o pvcOptions
	c := &cobra.Command{
		Use:   "describe NAME… [-n NAMESPACE]",
		Short: "Say all that is known of claims",
		Long: "Says of claims why they wait and what to do about it, which volume they have, how large\n" +
			"it is and becomes, what happens to the data when they are deleted, and which pods on\n" +
			"this machine use them. It takes no lock, and works while podvol run-node runs.\n\n" +
			"Exit code: 0, or 1 when a claim does not exist or a record is damaged.",
		Example:           "  podvol pvc describe ops-test/nfs-211",
		ValidArgsFunction: completion.Claims,
		RunE: func(c *cobra.Command, names []string) error {
			if len(names) == 0 {
				return usagef("name the claims, as NAME or NAMESPACE/NAME; podvol pvc -A lists them")
			}
			d, err := newDescriber(c.Context(), s, o.rootDir)
			if err != nil {
				return err
			}
			shown, missing, err := o.choose(d.found, names)
			if err != nil {
				return err
			}
			return errors.Join(d.claims(shown), errors.Join(missing...), d.damaged)
		},
	}
	c.Flags().StringVarP(&o.namespace, "namespace", "n", v1.NamespaceDefault, "the claims of this namespace")
	addRootDir(c.Flags(), &o.rootDir)
	return c
}

func pvDescribeCommand(s streams) *cobra.Command {
	var rootDir string
	c := &cobra.Command{
		Use:   "describe NAME…",
		Short: "Say all that is known of PersistentVolumes",
		Long: "Says of PersistentVolumes where their data is, whose they are, why one could not be\n" +
			"reclaimed, what happens to the data when the claim goes, and which pods on this machine\n" +
			"use them. It takes no lock, and works while podvol run-node runs.\n\n" +
			"Exit code: 0, or 1 when one does not exist or a record is damaged.",
		Example:           "  podvol pv describe nfs211",
		ValidArgsFunction: completion.Volumes,
		RunE: func(c *cobra.Command, names []string) error {
			if len(names) == 0 {
				return usagef("name the volumes; podvol pv lists them")
			}
			d, err := newDescriber(c.Context(), s, rootDir)
			if err != nil {
				return err
			}
			shown, missing, err := d.found.chooseVolumes(names)
			if err != nil {
				return err
			}
			return errors.Join(d.volumes(shown), errors.Join(missing...), d.damaged)
		},
	}
	addRootDir(c.Flags(), &rootDir)
	return c
}

// describer prints what is known below a root directory.
type describer struct {
	streams
	found      stored
	whys       claimWhys
	node       []nodeserver.Volume
	unanswered error // by the node
	events     []nodeevents.Event
	damaged    error
	printed    bool
}

func newDescriber(ctx context.Context, s streams, rootDir string) (*describer, error) {
	rootDir, err := checkRootDir(rootDir)
	if err != nil {
		return nil, err
	}
	found := readStored(rootDir)
	recorded, unreadable := volumemanager.Inspect(rootDir, table.Kernel())
	if _, fatal := errors.AsType[*volumemanager.RootError](unreadable); fatal {
		return nil, unreadable
	}
	node, unanswered, err := nodeserver.VolumesOr(ctx, rootDir, recorded, s.err)
	var events []nodeevents.Event
	if unanswered == nil {
		events, _ = nodeserver.Events(ctx, rootDir) // nothing else is missed without
	}
	users := make(kubectlget.ClaimUsers)
	for _, v := range recorded {
		if v.Claim.Name != "" && !slices.Contains(users[v.Claim], v.Pod.Name) {
			users[v.Claim] = append(users[v.Claim], v.Pod.Name)
		}
	}
	return &describer{streams: s, found: found, whys: claimWhys{found: found, users: users}, node: node, unanswered: unanswered, events: events, damaged: errors.Join(found.damaged, unreadable)}, err
}

func (d *describer) claims(all []*v1.PersistentVolumeClaim) error {
	for _, claim := range all {
		s := d.storage(d.found.volume(claim.Spec.VolumeName))
		s.Claim, s.Why = claim, d.whys.of(claim)
		if lost := d.found.lostVolume(claim); lost != "" {
			s.Why = append(s.Why, lost)
		}
		if err := d.print(s.ClaimFields(time.Now())); err != nil {
			return err
		}
	}
	return nil
}

func (d *describer) volumes(all []*v1.PersistentVolume) error {
	for _, pv := range all {
		s := d.storage(pv)
		if ref := pv.Spec.ClaimRef; ref != nil {
			for _, claim := range d.found.claims {
				if claim.Namespace == ref.Namespace && claim.Name == ref.Name {
					s.Claim = claim
				}
			}
		}
		if why := whyUnreclaimed(pv); why != "" {
			s.Why = []string{why + wayOut(pv)}
		}
		if err := d.print(s.VolumeFields(time.Now())); err != nil {
			return err
		}
	}
	return nil
}

func (d *describer) storage(pv *v1.PersistentVolume) describe.Storage {
	s := describe.Storage{Volume: pv, Node: d.node, Unanswered: d.unanswered, Events: d.events}
	if pv != nil {
		s.Source, s.OnDelete = sourceOf(pv), plannedFate(pv, false)
	}
	return s
}

// print separates what is printed by an empty line, as kubectl does.
func (d *describer) print(all []fields.Field) error {
	if d.printed {
		fmt.Fprintln(d.out)
	}
	d.printed = true
	return fields.Print(d.out, all)
}
