package nodeserver

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/nodehttp/nodepage"
	"github.com/podvol/podvol/volume/nodeagent/manifestdir"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Refused is the state of a row of /explain and /watch that stands for a refused manifest. Its
// source is the file. It has an error, and neither pod nor volume: what is in the file does not count.
const Refused = "refused"

// maxReason is how much of a reason is told, in characters: names in a manifest may be long.
const maxReason = 2000

// IsRefused reports whether the row is a refused manifest.
func (v Volume) IsRefused() bool { return v.State == Refused }

// Names reports whether a refused manifest's error is about an object of a kind, by its name with
// or without its namespace.
func (v Volume) Names(kind, name string) bool { return names(v.Error, kind, name) }

// Names reports what [Volume.Names] does.
func (m RefusedManifest) Names(kind, name string) bool { return names(m.Reason, kind, name) }

func names(reason, kind, name string) bool {
	for _, at := range strings.Split(reason, ": ") {
		object, ok := strings.CutPrefix(at, kind+" ")
		if ok && (object == name || strings.HasSuffix(object, "/"+name)) {
			return true
		}
	}
	return false
}

// refused are the refused manifests, at this moment.
func (v *Views) refused() []manifestdir.Refusal {
	if all := v.refusals.Load(); all != nil {
		return *all
	}
	return nil
}

// refusedRows are the rows of the refused manifests.
func (v *Views) refusedRows() (rows []volumemanager.VolumeStatus) {
	for _, r := range v.refused() {
		rows = append(rows, volumemanager.VolumeStatus{PodUID: types.UID("manifest " + filepath.Base(r.Path)), Source: r.Path,
			State: Refused, Since: r.Since, Err: errors.New(cut(r.Reason))})
	}
	return rows
}

// refusedShown are the refused manifests as the page for people shows them.
func (v *Views) refusedShown() (all []nodepage.Refused) {
	for _, r := range v.refused() {
		all = append(all, nodepage.Refused{Path: r.Path, Reason: r.Reason, Since: r.Since})
	}
	return all
}

// RefusedManifest is a refused manifest as the node tells of it to explain.
type RefusedManifest struct {
	Path   string    `json:"path"`
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`
	// Question: the path is the directory, and the reason asks whether it is the intended one.
	Question bool `json:"question,omitempty"`
	// Pods are the UIDs of the pods of the last good version, which stays in force.
	Pods []types.UID `json:"pods,omitempty"`
}

// refusedManifests are the refused manifests with their pods.
func (v *Views) refusedManifests() []RefusedManifest {
	all := []RefusedManifest{}
	for _, r := range v.refused() {
		all = append(all, RefusedManifest{r.Path, cut(r.Reason), r.Since, r.Question, r.Pods()})
	}
	return all
}

// RefusedManifests asks the podvol run-node that keeps a root directory for its refused manifests.
func RefusedManifests(ctx context.Context, rootDir string) ([]RefusedManifest, error) {
	return fetch[RefusedManifest](ctx, rootDir, refusedPath)
}

func cut(text string) string {
	if runes := []rune(text); len(runes) > maxReason {
		return string(runes[:maxReason]) + "…"
	}
	return text
}
