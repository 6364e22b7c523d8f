// Package attachments finds the volumes that are attached to this machine for no pod, and has them
// detached, for podvol fsck.
package attachments

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/podvol/podvol/examples/podvol/internal/problems"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/selfattach"
	"github.com/podvol/podvol/volume/standalone"
	"github.com/podvol/podvol/volume/volumemanager"
)

// attachedVolume is a volume that is attached for no pod.
const attachedVolume volumemanager.ProblemKind = "attached volume"

// Checker tells of the volumes that a root directory has attached to this machine.
type Checker struct {
	// Node would detach: its root directory, and the plugins that the command line names.
	Node standalone.NodeConfig
	// Volumes returns those below the root directory.
	Volumes func() []volumemanager.VolumeStatus
}

// Check lists those that no pod uses, and returns what it has to say of the others.
func (c Checker) Check(list *problems.List) (notes []string, err error) {
	found, err := standalone.Attached(c.Node.RootDir)
	volumes := c.Volumes()
	for _, a := range found {
		if pod := userOf(a, volumes); pod != "" {
			notes = append(notes, fmt.Sprintf("%s; pod %s uses it", sentence(a), pod))
		} else {
			list.Add(c.problemOf(a), false, nil)
		}
	}
	return notes, err
}

// Repair detaches those that no pod uses, as the next command that uses the root directory would.
func (c Checker) Repair(ctx context.Context, list *problems.List) error {
	found, err := standalone.Attached(c.Node.RootDir)
	volumes := c.Volumes()
	found = slices.DeleteFunc(found, func(a selfattach.Attachment) bool { return userOf(a, volumes) != "" })
	if err != nil || len(found) == 0 {
		return err
	}
	failed := errors.New("it was not tried")
	if c.canDetach() {
		node, err := standalone.StartNode(ctx, c.Node)
		if err != nil {
			return err
		}
		failed = node.Stop()
	}
	still, err := standalone.Attached(c.Node.RootDir)
	for _, a := range found {
		p := c.problemOf(a)
		remains := slices.ContainsFunc(still, func(other selfattach.Attachment) bool { return other.Path == a.Path })
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

func (c Checker) canDetach() bool {
	return slices.ContainsFunc(c.Node.Plugins, selfattach.CanAttach)
}

// userOf names the pod that has a volume; empty: none has.
func userOf(a selfattach.Attachment, volumes []volumemanager.VolumeStatus) string {
	for _, v := range volumes {
		if a.Spec != nil && (v.PersistentVolume != "" && v.PersistentVolume == a.Spec.Name() || v.Source != "" && v.Source == sourceOf(a.Spec)) {
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

func sentence(a selfattach.Attachment) string {
	is := "may be attached"
	if a.Attached {
		is = "is attached"
	}
	return fmt.Sprintf("volume %s of %s %s to this machine since %s", a.Spec.Name(), a.Driver, is, a.Since.UTC().Format(time.RFC3339))
}

func (c Checker) problemOf(a selfattach.Attachment) volumemanager.Problem {
	p := volumemanager.Problem{Kind: attachedVolume, Path: a.Path}
	switch {
	case a.Err != nil:
		p.Err = fmt.Errorf("the record of a volume that may be attached cannot be read: %w", a.Err)
		p.Advice = "find out what is attached to this machine, detach it, and remove the file"
		return p
	case c.canDetach():
		p.Repair = "detach it"
	default:
		p.Advice = fmt.Sprintf("give --csi-driver %s=SOCKET: then fsck --repair, and any other command that uses this root directory, detaches it", a.Driver)
	}
	p.Volume, p.Err = a.Spec.Name(), errors.New(sentence(a)+", and no pod uses it")
	return p
}
