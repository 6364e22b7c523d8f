package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/seal"
	"github.com/podvol/podvol/volume"
)

// knownManifests is what the files of a directory had that were in force last: names
// only. It outlives the command, so that the next start tells a directory whose disk
// is not mounted from one whose files were removed.
type knownManifests struct {
	path    string // of the file that keeps it
	stored  known
	absent  bool  // there is none
	made    bool  // there was one: its mark is there
	damaged error // why it cannot be read; then nothing is known
	fault   string
}

// known is the content of that file.
type known struct {
	// Version is knownVersion, or 0 in a file of an earlier version of podvol, which
	// has no checksum.
	Version int `json:"schemaVersion,omitempty"`
	dirIdentity
	// Files are the objects of each file.
	Files map[string][]string `json:"files"`
}

// knownFile is the file's name in the state directory.
const knownFile = "manifests"

const knownVersion = 2

// markPath is of a file beside it, which says that it was made: so one that was lost
// is told from a root directory that run-node has not used before.
func markPath(path string) string { return path + ".made" }

// openKnown reads what is known. A file that is not there is no fault: then
// nothing is.
func openKnown(path string) *knownManifests {
	k := &knownManifests{path: path}
	_, err := os.Lstat(markPath(path))
	k.made = !errors.Is(err, fs.ErrNotExist)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		k.absent = true
		return k
	}
	if err == nil {
		k.stored, err = parseKnown(data)
	}
	if err != nil {
		k.stored, k.damaged = known{}, fmt.Errorf("%s cannot be read, so that it is not known which files there were: %w", path, err)
	}
	return k
}

// parseKnown refuses everything that store, here or in an earlier version, has not
// written as it is: a name too few is a pod that is torn down, with its data.
func parseKnown(data []byte) (k known, err error) {
	line, sealed, err := seal.Open(data)
	if err != nil {
		return known{}, err
	}
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&k); err != nil {
		return known{}, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return known{}, errors.New("something follows what it says")
	}
	switch {
	case k.Version != 0 && k.Version != knownVersion:
		return known{}, fmt.Errorf("its schema version is %d, this program knows none and %d", k.Version, knownVersion)
	case k.Version != 0 && !sealed:
		return known{}, seal.ErrNone
	case k.Files == nil:
		return known{}, errors.New("it has no files")
	}
	return k, nil
}

// store makes now what is known, before anything of it is applied.
func (k *knownManifests) store(now known) error {
	now.Version = knownVersion
	if k.damaged == nil && k.made && !k.absent && k.stored.Version == now.Version && k.stored.dirIdentity == now.dirIdentity && maps.EqualFunc(k.stored.Files, now.Files, slices.Equal) {
		return nil
	}
	data, err := json.Marshal(now)
	if err != nil {
		return err
	}
	if err := durable.WriteFile(k.path, seal.Add(append(data, '\n')), 0o600); err != nil {
		return err
	}
	k.stored, k.damaged, k.absent = now, nil, false
	if k.made {
		return nil
	}
	err = durable.WriteFile(markPath(k.path), nil, 0o600)
	k.made = err == nil
	return err
}

// missing are the files of which something is in none of those that are in force, and
// has not been seen to go.
func (k known) missing(now known, seen map[string]bool) (files []string) {
	there := maps.Clone(seen)
	for _, objects := range now.Files {
		for _, object := range objects {
			there[object] = true
		}
	}
	for name, objects := range k.Files {
		if slices.ContainsFunc(objects, func(object string) bool { return !there[object] }) {
			files = append(files, name)
		}
	}
	slices.Sort(files)
	return files
}

// and adds the files that only the other one has.
func (k known) and(other known) known {
	all := known{dirIdentity: k.dirIdentity, Files: make(map[string][]string)}
	maps.Copy(all.Files, other.Files)
	maps.Copy(all.Files, k.Files)
	return all
}

// with adds all that files have now, and forgets nothing.
func (k known) with(now known) known {
	if len(k.Files) == 0 {
		return now
	}
	all := known{dirIdentity: k.dirIdentity, Files: maps.Clone(k.Files)}
	for name, objects := range now.Files {
		objects = slices.Concat(k.Files[name], objects)
		slices.Sort(objects)
		all.Files[name] = slices.Compact(objects)
	}
	return all
}

// inForce is what the good files have now.
func (d *manifestDir) inForce() known {
	now := known{dirIdentity: d.dirID, Files: make(map[string][]string)}
	for name, file := range d.files {
		if file.good == nil {
			continue
		}
		objects := []string{}
		for ref := range file.good.objects {
			objects = append(objects, ref.String())
		}
		for ref := range file.good.pods {
			objects = append(objects, ref.String())
		}
		slices.Sort(objects)
		now.Files[name] = objects
	}
	return now
}

// ask finds out whether what is missing was removed. Where the directory is another
// one than it was, or has nothing of what it had at the last start, its disk may not
// be mounted; then nothing is torn down until it is back, or somebody says that it
// is meant. What this run sees go, file by file, is meant.
func (d *manifestDir) ask() {
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
		return // what is missing may be on its way, and is in force until it is known
	}
	if d.question = question; question != "" {
		return
	}
	if d.unsettled() != "" { // what is missing may be wanted still
		now = now.and(d.known.stored)
	}
	d.remember(now)
}

func (d *manifestDir) questionAbout(now known) string {
	if d.accept {
		return ""
	}
	if d.known.damaged != nil {
		return fmt.Sprintf("%v; if %s has all that is wanted, say so with --accept-manifests", d.known.damaged, d.dir)
	}
	if pods := d.unlisted(); len(pods) > 0 {
		return fmt.Sprintf("%s is missing, so that it is not known which files there were, and volumes are mounted of pods that are in no manifest: %s. Nothing is torn down until they are in one; if they are to go, say so with --accept-manifests",
			d.known.path, few(pods))
	}
	if d.known.absent && len(d.files) == 0 && len(d.mounted()) > 0 {
		return fmt.Sprintf("%s is empty, and volumes of pods are mounted: is its disk? Nothing is torn down until it has manifests; if they are to go, say so with --accept-manifests", d.dir)
	}
	missing := d.known.stored.missing(d.there(now), d.shown)
	if len(missing) == 0 || d.known.stored.same(now.dirIdentity) && d.hasKnownFile() {
		return ""
	}
	return fmt.Sprintf("%s is empty, or another directory than it was, and lacks objects of %s: is its disk mounted? Nothing is torn down or deleted until they are back; if they are to go, say so with --accept-manifests",
		d.dir, few(missing))
}

// unlisted are the pods that have volumes mounted, and are in no good file that is
// there, where what was known of the files is lost.
func (d *manifestDir) unlisted() (pods []string) {
	if !d.known.absent || !d.known.made {
		return nil
	}
	listed := make(map[types.UID]bool)
	for _, file := range d.files {
		if !file.there || file.good == nil {
			continue
		}
		for _, pod := range file.good.pods {
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

// there leaves out the files that are missing.
func (d *manifestDir) there(now known) known {
	there := known{dirIdentity: now.dirIdentity, Files: maps.Clone(now.Files)}
	maps.DeleteFunc(there.Files, func(name string, _ []string) bool { return !d.files[name].there })
	return there
}

// hasKnownFile reports whether one of the files is there that were.
func (d *manifestDir) hasKnownFile() bool {
	for name, file := range d.files {
		if _, was := d.known.stored.Files[name]; was && file.there {
			return true
		}
	}
	return false
}

// remember keeps what is in force for the next start.
func (d *manifestDir) remember(now known) {
	err := d.known.store(now)
	if err != nil {
		d.complain(&d.known.fault, fmt.Sprintf("which manifests there are cannot be kept for the next start: %v", err))
		return
	}
	d.known.fault = ""
}

// unsettled returns the name of a file that is not in force as it is; empty if there
// is none. What was in another file may be in it by now, and so is not unwanted.
func (d *manifestDir) unsettled() string {
	for _, file := range d.sorted() {
		if file.doubt {
			return file.name
		}
	}
	return ""
}

// hold adds to what good files say all that they said before, while something is not
// in force.
func (d *manifestDir) hold(all *contents) {
	file := d.unsettled()
	if d.question == "" && file == "" {
		return
	}
	uids := make(map[types.UID]bool, len(all.pods))
	for _, pod := range all.pods {
		uids[pod.UID] = true
	}
	held := []string{}
	keep := func(ref volume.ObjectRef) { held = append(held, ref.String()) }
	for ref, pod := range d.last.pods {
		if all.pods[ref] == nil && !uids[pod.UID] {
			all.pods[ref] = pod
			keep(ref)
		}
	}
	for ref, object := range d.last.objects {
		if all.objects[ref] == nil {
			all.objects[ref] = object
			keep(ref)
		}
	}
	maps.Copy(all.sets, d.last.sets)
	if len(held) > 0 && d.question == "" {
		slices.Sort(held)
		all.held = fmt.Sprintf("in no file that is in force, and kept while %s is not: %s", file, few(held))
	}
}

// few names the first of many.
func few(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
