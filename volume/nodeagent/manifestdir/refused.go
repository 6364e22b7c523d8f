package manifestdir

import (
	"cmp"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Refusal is a file that is refused, or the directory while it cannot be read or a person
// has to say whether it is the intended one.
type Refusal struct {
	// Path is its path.
	Path string
	// Reason is for people. It names the objects at fault and contains no value of a
	// manifest.
	Reason string
	// Since is the time of the first refusal after the last good version.
	Since time.Time
	// Question: Path is the directory, and Reason is [Directory.Question].
	Question bool

	good *Contents // the last good version; nil: there was none
}

// Pods returns the UIDs of the pods of the file's last good version, which stays in force, in order.
// Several goroutines may call it.
func (r Refusal) Pods() (uids []types.UID) {
	if r.good == nil {
		return nil
	}
	for _, pod := range r.good.Pods {
		uids = append(uids, pod.UID)
	}
	slices.Sort(uids)
	return uids
}

// Refused returns what is refused, in the order of the paths. The caller owns it.
func (d *Directory) Refused() (all []Refusal) {
	if d.fault != "" {
		all = append(all, Refusal{Path: d.dir, Reason: d.fault, Since: d.unread})
	} else if d.question != "" {
		all = append(all, Refusal{Path: d.dir, Reason: d.question, Since: d.asked, Question: true})
	}
	for _, file := range d.files {
		if file.fault != "" {
			all = append(all, Refusal{Path: filepath.Join(d.dir, file.name), Reason: file.fault, Since: file.refused, good: file.good})
		}
	}
	slices.SortFunc(all, func(a, b Refusal) int { return cmp.Compare(a.Path, b.Path) })
	return all
}
