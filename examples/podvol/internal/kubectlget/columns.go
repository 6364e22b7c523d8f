// Package kubectlget prints claims and PersistentVolumes as kubectl get does (v1.37), so
// that people and scripts find what they know.
package kubectlget

import (
	"cmp"
	"io"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/podvol/podvol/examples/podvol/internal/table"
)

// Table is a table that kubectl would print. On a terminal that it does not fit it has fewer
// columns, and shorter heads.
type Table struct {
	Columns []table.Column
	Rows    [][]string
}

// Print writes the table, on a terminal not wider than that unless it is to be whole.
func (t Table) Print(out io.Writer, whole bool) error {
	printed := table.New(out, t.Columns...).Gap(3)
	if whole {
		printed.Unlimited()
	}
	return printed.Print(t.Rows...)
}

// columns are those with kubectl's heads.
func columns(heads ...string) (all []table.Column) {
	for _, head := range heads {
		c := table.Column{Head: head}
		switch head {
		case "ACCESS MODES":
			c.Short, c.Whole, c.Extra = "MODES", true, 4
		case "RECLAIM POLICY":
			c.Short, c.Whole, c.Extra = "RECLAIM", true, 2
		case "STORAGECLASS":
			c.Short, c.Extra = "CLASS", 5
		case "VOLUMEATTRIBUTESCLASS", "REASON":
			c.Spare = true
		case "AGE":
			c.Whole, c.Extra = true, 3
		case "CAPACITY":
			c.Whole, c.Extra = true, 1
		case "STATUS":
			c.Whole = true
		}
		all = append(all, c)
	}
	return all
}

// VolumeColumns is a row for each PersistentVolume.
func VolumeColumns(volumes []*v1.PersistentVolume, wide bool, now time.Time) Table {
	header := []string{"NAME", "CAPACITY", "ACCESS MODES", "RECLAIM POLICY", "STATUS", "CLAIM", "STORAGECLASS", "VOLUMEATTRIBUTESCLASS", "REASON", "AGE"}
	if wide {
		header = append(header, "VOLUMEMODE")
	}
	t := Table{Columns: columns(header...)}
	for _, pv := range volumes {
		claim := ""
		if ref := pv.Spec.ClaimRef; ref != nil {
			claim = ref.Namespace + "/" + ref.Name
		}
		row := []string{
			pv.Name, pv.Spec.Capacity.Storage().String(), ShortModes(pv.Spec.AccessModes), string(pv.Spec.PersistentVolumeReclaimPolicy),
			phaseOf(pv, string(pv.Status.Phase)), claim, classOfObject(pv, pv.Spec.StorageClassName),
			unsetIfNil(pv.Spec.VolumeAttributesClassName), pv.Status.Reason, age(pv, now),
		}
		if wide {
			row = append(row, unsetIfNil(pv.Spec.VolumeMode))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// ClaimUsers are the pods that have a claim's volume mounted on this machine.
type ClaimUsers map[types.NamespacedName][]string

// ClaimColumns is a row for each claim.
func ClaimColumns(claims []*v1.PersistentVolumeClaim, namespaces, wide bool, users ClaimUsers, now time.Time) Table {
	var header []string
	if namespaces {
		header = append(header, "NAMESPACE")
	}
	header = append(header, "NAME", "STATUS", "VOLUME", "CAPACITY", "ACCESS MODES", "STORAGECLASS", "VOLUMEATTRIBUTESCLASS", "AGE")
	if wide {
		header = append(header, "VOLUMEMODE", "USED BY")
	}
	t := Table{Columns: columns(header...)}
	for _, claim := range claims {
		var row []string
		if namespaces {
			row = append(row, claim.Namespace)
		}
		capacity, modes := "", ""
		if claim.Spec.VolumeName != "" {
			capacity, modes = claim.Status.Capacity.Storage().String(), ShortModes(claim.Status.AccessModes)
		}
		class := ""
		if claim.Spec.StorageClassName != nil {
			class = *claim.Spec.StorageClassName
		}
		row = append(row, claim.Name, phaseOf(claim, string(claim.Status.Phase)), claim.Spec.VolumeName, capacity, modes,
			classOfObject(claim, class), unsetIfNil(claim.Spec.VolumeAttributesClassName), age(claim, now))
		if wide {
			used := strings.Join(users[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}], ",")
			row = append(row, unsetIfNil(claim.Spec.VolumeMode), cmp.Or(used, "<none>"))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

func phaseOf(o metav1.Object, phase string) string {
	if o.GetDeletionTimestamp() != nil {
		return "Terminating"
	}
	return phase
}

// classOfObject returns the storage class, which an older annotation outranks.
func classOfObject(o metav1.Object, class string) string {
	if old, ok := o.GetAnnotations()[v1.BetaStorageClassAnnotation]; ok {
		return old
	}
	return class
}

func unsetIfNil[S ~string](s *S) string {
	if s == nil {
		return "<unset>"
	}
	return string(*s)
}

func age(o metav1.Object, now time.Time) string {
	created := o.GetCreationTimestamp()
	if created.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(created.Time))
}

// ShortModes names access modes by their initials, each once and in the order of
// kubectl.
func ShortModes(modes []v1.PersistentVolumeAccessMode) string {
	var names []string
	for _, known := range []struct {
		mode v1.PersistentVolumeAccessMode
		name string
	}{{v1.ReadWriteOnce, "RWO"}, {v1.ReadOnlyMany, "ROX"}, {v1.ReadWriteMany, "RWX"}, {v1.ReadWriteOncePod, "RWOP"}} {
		for _, mode := range modes {
			if mode == known.mode {
				names = append(names, known.name)
				break
			}
		}
	}
	return strings.Join(names, ",")
}
