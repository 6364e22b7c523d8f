package kubectlget

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/podvol/internal/choice"
)

// NotFoundError says that there is no object of a name, as kubectl does, and which one may be meant.
type NotFoundError struct {
	// Word is the name as it was given.
	Word string
	text string
}

func (e *NotFoundError) Error() string { return e.text }

// VolumeNotFound is the error for a PersistentVolume that is not among all.
func VolumeNotFound(name string, all []*v1.PersistentVolume) *NotFoundError {
	names := make([]string, len(all))
	for i, pv := range all {
		names[i] = pv.Name
	}
	return &NotFoundError{name, fmt.Sprintf("%s %q not found%s", VolumeKind.Plural, name, choice.Meant(name, names))}
}

// ClaimNotFound is the error for a claim that is not among all. Claims of its namespace have a like
// name, or those of others its own.
func ClaimNotFound(word string, name types.NamespacedName, all []*v1.PersistentVolumeClaim) *NotFoundError {
	var like []string
	elsewhere := ""
	for _, claim := range all {
		switch {
		case claim.Namespace == name.Namespace:
			like = append(like, claim.Name)
		case claim.Name == name.Name:
			elsewhere = fmt.Sprintf("; did you mean %q?", claim.Namespace+"/"+claim.Name)
		}
	}
	meant := choice.Meant(name.Name, like)
	if meant == "" {
		meant = elsewhere
	}
	return &NotFoundError{word, fmt.Sprintf("%s %q not found in namespace %s%s", ClaimKind.Plural, name.Name, name.Namespace, meant)}
}
