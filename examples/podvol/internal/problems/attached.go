package problems

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/selfattach"
	"github.com/podvol/podvol/volume/standalone"
	"github.com/podvol/podvol/volume/volumemanager"
)

// attachedVolume is a volume that is attached for no pod.
const attachedVolume volumemanager.ProblemKind = "attached volume"

// Attached tells of the volumes that a root directory has attached to this machine.
type Attached struct {
	// Node would detach: its root directory, and the plugins that the command line names.
	Node standalone.NodeConfig
	// Volumes returns those below the root directory.
	Volumes func() []volumemanager.VolumeStatus
}

// Check lists those that no pod uses, and returns what it has to say of the others.
func (a Attached) Check(list *List) (notes []string, err error) {
	left, err := standalone.Attached(a.Node.RootDir)
	volumes := a.Volumes()
	for _, l := range left {
		if pod := userOf(l, volumes); pod != "" {
			notes = append(notes, fmt.Sprintf("%s; pod %s uses it", sentence(l), pod))
		} else {
			list.Add(a.problemOf(l), false, nil)
		}
	}
	return notes, err
}

// Repair detaches those that no pod uses, as the next command that uses the root directory would.
func (a Attached) Repair(ctx context.Context, list *List) error {
	left, err := standalone.Attached(a.Node.RootDir)
	volumes := a.Volumes()
	left = slices.DeleteFunc(left, func(l selfattach.Left) bool { return userOf(l, volumes) != "" })
	if err != nil || len(left) == 0 {
		return err
	}
	failed := errors.New("it was not tried")
	if a.canDetach() {
		node, err := standalone.StartNode(ctx, a.Node)
		if err != nil {
			return err
		}
		failed = node.Stop()
	}
	still, err := standalone.Attached(a.Node.RootDir)
	for _, l := range left {
		p := a.problemOf(l)
		remains := slices.ContainsFunc(still, func(other selfattach.Left) bool { return other.Path == l.Path })
		switch {
		case p.Repair == "":
			list.Add(p, false, nil)
		case remains:
			list.Add(p, true, failed)
		default:
			list.Add(p, true, nil)
		}
	}
	return err
}

func (a Attached) canDetach() bool {
	return slices.ContainsFunc(a.Node.Plugins, selfattach.CanAttach)
}

// userOf names the pod that has a volume; empty: none has.
func userOf(l selfattach.Left, volumes []volumemanager.VolumeStatus) string {
	for _, v := range volumes {
		if l.Spec != nil && (v.PersistentVolume != "" && v.PersistentVolume == l.Spec.Name() || v.Source != "" && v.Source == sourceOf(l.Spec)) {
			return v.Pod.String()
		}
	}
	return ""
}

// sourceOf is the source of a driver's volume as the rows of a manager have it.
func sourceOf(spec *volume.Spec) string {
	if pv := spec.PersistentVolume; pv != nil && pv.Spec.CSI != nil {
		return pv.Spec.CSI.Driver + ":" + pv.Spec.CSI.VolumeHandle
	}
	return ""
}

func sentence(l selfattach.Left) string {
	is := "may be attached"
	if l.Attached {
		is = "is attached"
	}
	return fmt.Sprintf("volume %s of %s %s to this machine since %s", l.Spec.Name(), l.Driver, is, l.Since.UTC().Format(time.RFC3339))
}

func (a Attached) problemOf(l selfattach.Left) volumemanager.Problem {
	p := volumemanager.Problem{Kind: attachedVolume, Path: l.Path}
	switch {
	case l.Err != nil:
		p.Err = fmt.Errorf("the record of a volume that may be attached cannot be read: %w", l.Err)
		p.Advice = "find out what is attached to this machine, detach it, and remove the file"
		return p
	case a.canDetach():
		p.Repair = "detach it"
	default:
		p.Advice = fmt.Sprintf("give --csi-driver %s=SOCKET: then fsck --repair, and any other command that uses this root directory, detaches it", l.Driver)
	}
	p.Volume, p.Err = l.Spec.Name(), errors.New(sentence(l)+", and no pod uses it")
	return p
}
