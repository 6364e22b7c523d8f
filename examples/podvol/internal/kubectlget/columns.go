// Package kubectlget prints claims and PersistentVolumes as kubectl get does (v1.37), so
// that people and scripts find what they know.
package kubectlget

import (
	"cmp"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
)

// Table is a table that kubectl would print: the first row is the header.
type Table [][]string

// Print writes the table as wide as its widest cells are.
func (t Table) Print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 6, 4, 3, ' ', 0)
	for _, row := range t {
		cells := make([]string, len(row))
		for i, text := range row {
			cells[i] = plaintext.Cell(text)
		}
		if _, err := io.WriteString(w, strings.Join(cells, "\t")+"\n"); err != nil {
			return err
		}
	}
	return w.Flush()
}

// VolumeColumns is a row for each PersistentVolume.
func VolumeColumns(volumes []*v1.PersistentVolume, wide bool, now time.Time) Table {
	header := []string{"NAME", "CAPACITY", "ACCESS MODES", "RECLAIM POLICY", "STATUS", "CLAIM", "STORAGECLASS", "VOLUMEATTRIBUTESCLASS", "REASON", "AGE"}
	if wide {
		header = append(header, "VOLUMEMODE")
	}
	table := Table{header}
	for _, pv := range volumes {
		claim := ""
		if ref := pv.Spec.ClaimRef; ref != nil {
			claim = ref.Namespace + "/" + ref.Name
		}
		row := []string{
			pv.Name, pv.Spec.Capacity.Storage().String(), shortModes(pv.Spec.AccessModes), string(pv.Spec.PersistentVolumeReclaimPolicy),
			phaseOf(pv, string(pv.Status.Phase)), claim, classOfObject(pv, pv.Spec.StorageClassName),
			unsetIfNil(pv.Spec.VolumeAttributesClassName), pv.Status.Reason, age(pv, now),
		}
		if wide {
			row = append(row, unsetIfNil(pv.Spec.VolumeMode))
		}
		table = append(table, row)
	}
	return table
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
	table := Table{header}
	for _, claim := range claims {
		var row []string
		if namespaces {
			row = append(row, claim.Namespace)
		}
		capacity, modes := "", ""
		if claim.Spec.VolumeName != "" {
			capacity, modes = claim.Status.Capacity.Storage().String(), shortModes(claim.Status.AccessModes)
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
		table = append(table, row)
	}
	return table
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

// shortModes names access modes by their initials, each once and in the order of
// kubectl.
func shortModes(modes []v1.PersistentVolumeAccessMode) string {
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
