package manifestdir

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

// ask decides whether missing objects were removed. Two directories are
// suspicious, because their disk may not be mounted: another directory than
// before, and one without any object of the last start. Then nothing is torn down
// until the old directory is back, or a person confirms the new one. A removal
// file by file during this run needs no question.
func (d *Directory) ask() {
	if d.fault != "" || d.since.IsZero() {
		return
	}
	now := d.inForce()
	if d.early { // it is too early to tell, but not to mount
		if len(now.Files) > 0 && d.questionAbout(now) == "" {
			d.remember(d.known.stored.with(now))
		}
		return
	}
	question, moving := d.questionAbout(now), slices.ContainsFunc(d.sorted(), func(f *watchedFile) bool { return !f.there })
	if question != "" && moving {
		return // a missing object may be on its way, and is in force until it is known
	}
	if question != "" && d.question == "" {
		d.asked = time.Now()
	}
	if d.question = question; question != "" {
		return
	}
	if d.unsettled() != "" { // a missing object may be wanted still
		now = now.and(d.known.stored)
	}
	d.remember(now)
}

func (d *Directory) questionAbout(now known) string {
	if d.accept {
		return ""
	}
	if d.known.damaged != nil {
		return fmt.Sprintf("%v; if %s has all that is wanted, say so with %s", d.known.damaged, d.dir, d.acceptHint)
	}
	if pods := d.unlisted(); len(pods) > 0 {
		return fmt.Sprintf("%s is missing, so that it is not known which files there were, and volumes are mounted of pods that are in no manifest: %s. Nothing is torn down until they are in one; if they are to go, say so with %s",
			d.known.path, few(pods), d.acceptHint)
	}
	if d.known.absent && len(d.files) == 0 && len(d.mounted()) > 0 {
		return fmt.Sprintf("%s is empty, and volumes of pods are mounted: is its disk? Nothing is torn down until it has manifests; if they are to go, say so with %s", d.dir, d.acceptHint)
	}
	missing := d.known.stored.missing(d.there(now), d.shown)
	if len(missing) == 0 || d.known.stored.same(now.dirIdentity) && d.hasKnownFile() {
		return ""
	}
	return fmt.Sprintf("%s is empty, or another directory than it was, and lacks objects of %s: is its disk mounted? Nothing is torn down or deleted until they are back; if they are to go, say so with %s",
		d.dir, few(missing), d.acceptHint)
}

// unlisted are the pods that have volumes mounted and are in no good file, if the
// file of known objects is lost.
func (d *Directory) unlisted() (pods []string) {
	if !d.known.absent || !d.known.made {
		return nil
	}
	listed := make(map[types.UID]bool)
	for _, file := range d.files {
		if !file.there || file.good == nil {
			continue
		}
		for _, pod := range file.good.Pods {
			listed[pod.UID] = true
		}
	}
	for _, v := range d.mounted() {
		if !listed[v.PodUID] {
			pods = append(pods, v.Pod.String())
		}
	}
	slices.Sort(pods)
	return slices.Compact(pods)
}

// unsettled returns the name of a file that is not in force as it is; empty:
// none. Objects of another file may have moved into it, so they are not unwanted.
func (d *Directory) unsettled() string {
	for _, file := range d.sorted() {
		if file.stale {
			return file.name
		}
	}
	return ""
}

// hold adds the earlier objects of the good files, while a file is not in force.
func (d *Directory) hold(all *Contents) {
	file := d.unsettled()
	if d.question == "" && file == "" {
		return
	}
	uids := make(map[types.UID]bool, len(all.Pods))
	for _, pod := range all.Pods {
		uids[pod.UID] = true
	}
	held := []string{}
	keep := func(ref volume.ObjectRef) { held = append(held, ref.String()) }
	for ref, pod := range d.last.Pods {
		if all.Pods[ref] == nil && !uids[pod.UID] {
			all.Pods[ref] = pod
			keep(ref)
		}
	}
	for ref, object := range d.last.Objects {
		if all.Objects[ref] == nil {
			all.Objects[ref] = object
			keep(ref)
		}
	}
	maps.Copy(all.StatefulSets, d.last.StatefulSets)
	if len(held) > 0 && d.question == "" {
		slices.Sort(held)
		all.Held = fmt.Sprintf("in no file that is in force, and kept while %s is not: %s", file, few(held))
	}
}

// few returns the first of many names.
func few(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
