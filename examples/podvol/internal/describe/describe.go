// Package describe says of a claim or a PersistentVolume what kubectl describe would, and what
// becomes of its data.
package describe

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/examples/nodehttp/nodeevents"
	"github.com/podvol/podvol/examples/podvol/internal/fields"
	"github.com/podvol/podvol/examples/podvol/internal/nodeserver"
)

// Storage is what is known of a claim and its volume, of which one may be nil.
type Storage struct {
	Claim  *v1.PersistentVolumeClaim
	Volume *v1.PersistentVolume
	// Why says why the claim waits or is still there, or what is wrong with the volume, and what to
	// do about it.
	Why []string
	// Source is where the volume's data is, and OnDelete what becomes of both when the claim is
	// deleted; empty without a volume.
	Source, OnDelete string
	// Node are the volumes of pods on this machine, and Unanswered says why they are those on record;
	// nil: the node has told of them.
	Node       []nodeserver.Volume
	Unanswered error
	// Events are those that the node remembers.
	Events []nodeevents.Event
}

// ClaimFields describe the claim.
func (s Storage) ClaimFields(now time.Time) []fields.Field {
	c := s.Claim
	class := c.Spec.StorageClassName
	if old, ok := c.Annotations[v1.BetaStorageClassAnnotation]; ok {
		class = &old
	}
	return []fields.Field{
		{Name: "Name", Text: c.Name},
		{Name: "Namespace", Text: c.Namespace},
		{Name: "UID", Text: string(c.UID)},
		{Name: "Created", Text: fields.Since(c.CreationTimestamp.Time, now)},
		{Name: "Status", Text: status(c, string(c.Status.Phase), now)},
		{Name: "Why", Text: strings.Join(s.Why, "\n")},
		{Name: "StorageClass", Text: named(class, "none is named: the cluster's default, if there is one")},
		{Name: "Volume", Text: cmp.Or(c.Spec.VolumeName, "none yet")},
		{Name: "Data", Text: s.Source},
		{Name: "Capacity", Text: growth(c)},
		{Name: "Access Modes", Text: modes(c.Spec.AccessModes)},
		{Name: "Volume Mode", Text: mode(c.Spec.VolumeMode)},
		{Name: "Reclaim Policy", Text: s.policy()},
		{Name: "If it is deleted", Text: s.OnDelete},
		{Name: "Selected Node", Text: c.Annotations["volume.kubernetes.io/selected-node"]},
		{Name: "Conditions", Text: conditions(c.Status.Conditions, now)},
		{Name: "Used By", Text: cmp.Or(s.users(now), s.noUsers())},
		fields.Events(s.Events, fields.Subject{Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name, UID: c.UID, Since: c.CreationTimestamp.Time}, now),
	}
}

// VolumeFields describe the volume.
func (s Storage) VolumeFields(now time.Time) []fields.Field {
	pv := s.Volume
	claim := "none"
	if ref := pv.Spec.ClaimRef; ref != nil {
		claim = ref.Namespace + "/" + ref.Name
		if s.Claim == nil {
			claim += ", which does not exist"
		}
	}
	options := "none"
	if n := len(pv.Spec.MountOptions); n > 0 {
		options = fmt.Sprintf("%d; podvol pv %s -o yaml prints them", n, pv.Name)
	}
	return []fields.Field{
		{Name: "Name", Text: pv.Name},
		{Name: "UID", Text: string(pv.UID)},
		{Name: "Created", Text: fields.Since(pv.CreationTimestamp.Time, now)},
		{Name: "Status", Text: status(pv, string(pv.Status.Phase), now)},
		{Name: "Reason", Text: pv.Status.Reason},
		{Name: "Why", Text: strings.Join(s.Why, "\n")},
		{Name: "StorageClass", Text: cmp.Or(pv.Spec.StorageClassName, "none")},
		{Name: "Claim", Text: claim},
		{Name: "Data", Text: s.Source},
		{Name: "Capacity", Text: quantity(pv.Spec.Capacity)},
		{Name: "Access Modes", Text: modes(pv.Spec.AccessModes)},
		{Name: "Volume Mode", Text: mode(pv.Spec.VolumeMode)},
		{Name: "Mount Options", Text: options},
		{Name: "Reclaim Policy", Text: s.policy()},
		{Name: "If its claim goes", Text: s.OnDelete},
		{Name: "Provisioned By", Text: pv.Annotations["pv.kubernetes.io/provisioned-by"]},
		{Name: "Used By", Text: cmp.Or(s.users(now), s.noUsers())},
		fields.Events(s.Events, fields.Subject{Kind: "PersistentVolume", Name: pv.Name, UID: pv.UID, Since: pv.CreationTimestamp.Time}, now),
	}
}

func status(o metav1.Object, phase string, now time.Time) string {
	if at := o.GetDeletionTimestamp(); at != nil {
		return "Terminating since " + fields.Since(at.Time, now)
	}
	return cmp.Or(phase, "not known")
}

func named(class *string, unnamed string) string {
	switch {
	case class == nil:
		return unnamed
	case *class == "":
		return "none: volumes without a class alone"
	}
	return *class
}

func (s Storage) policy() string {
	if s.Volume == nil {
		return ""
	}
	return string(s.Volume.Spec.PersistentVolumeReclaimPolicy)
}

// growth is a claim's size, and the one that it asks for where that is another one.
func growth(c *v1.PersistentVolumeClaim) string {
	asked, has := c.Spec.Resources.Requests[v1.ResourceStorage], c.Status.Capacity[v1.ResourceStorage]
	switch {
	case c.Spec.VolumeName == "" || has.IsZero():
		return asked.String() + " asked for"
	case asked.Cmp(has) > 0:
		text := fmt.Sprintf("%s, and %s asked for", has.String(), asked.String())
		if state, ok := c.Status.AllocatedResourceStatuses[v1.ResourceStorage]; ok {
			text += ": " + string(state)
		}
		return text
	}
	return has.String()
}

func quantity(all v1.ResourceList) string {
	size := all[v1.ResourceStorage]
	return size.String()
}

func modes(all []v1.PersistentVolumeAccessMode) string {
	names := make([]string, len(all))
	for i, m := range all {
		names[i] = string(m)
	}
	return strings.Join(names, ", ")
}

func mode(m *v1.PersistentVolumeMode) string {
	if m == nil {
		return string(v1.PersistentVolumeFilesystem)
	}
	return string(*m)
}

func conditions(all []v1.PersistentVolumeClaimCondition, now time.Time) string {
	var lines []string
	for _, c := range all {
		line := fmt.Sprintf("%s is %s", c.Type, c.Status)
		if since := fields.Since(c.LastTransitionTime.Time, now); since != "" {
			line += " since " + since
		}
		if c.Reason+c.Message != "" {
			line += ": " + strings.TrimSpace(c.Reason+" "+c.Message)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// users are the pods on this machine that have the volume, or wait for it.
func (s Storage) users(now time.Time) string {
	var lines []string
	for _, v := range s.Node {
		ofClaim := s.Claim != nil && v.Claim == s.Claim.Namespace+"/"+s.Claim.Name
		if !ofClaim && (s.Volume == nil || v.PersistentVolume != s.Volume.Name) {
			continue
		}
		line := fmt.Sprintf("%s (volume %s): %s", v.PodName(), v.Volume, v.State)
		if since := fields.Since(v.Since, now); since != "" {
			line += " since " + since
		}
		if v.WaitsFor != "" {
			line += ", waits for " + v.WaitsFor
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// noUsers is what users is where there are none. Pods that wait are on no record.
func (s Storage) noUsers() string {
	switch {
	case s.Unanswered == nil:
		return "no pod on this machine"
	case errors.Is(s.Unanswered, nodeserver.ErrNoNode):
		return "no pod on record; podvol run-node does not run"
	}
	return "no pod on record; podvol run-node does not answer"
}
