package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/volumemanager"
)

// manifestDir is what the manifests of a directory say, each in the last
// version that was good.
type manifestDir struct {
	dir    string
	loader manifest.Loader      // with a node's name
	check  func(*v1.Pod) error  // what else can be wrong with a pod
	say    func(message string) // to the user
	files  map[string]*watchedFile
	fault  string    // why the directory cannot be read
	since  time.Time // when it could be read first, or again
	early  bool      // a file may have been on its way to another name at since
	dirID  dirIdentity
	device uint64 // of the directory
	// seen are the objects that good files have had in that directory, since this
	// run began or the directory came.
	seen map[volume.ObjectRef]bool
	last *contents // that were wanted

	known    *knownManifests                     // what the directory had
	accept   bool                                // the directory is meant as it is, whatever it had
	mounted  func() []volumemanager.VolumeStatus // of pods
	question string                              // what somebody has to answer before anything goes; empty: nothing
	shown    map[string]bool                     // like seen, with pods
}

// watchedFile is one file.
type watchedFile struct {
	name    string
	good    *contents // the last good version; nil: there was none
	digest  [sha256.Size]byte
	fault   string    // what is wrong with the file as it is now
	doubt   bool      // the version that is there now is not the good one
	there   bool      // in the last scan
	written time.Time // when it was found first to be open for writing; zero while it is not
	gone    time.Time // when it was missed first; zero while it is there
}

// contents are what a good file says.
type contents struct {
	objects map[volume.ObjectRef]metav1.Object // without pods
	pods    map[volume.ObjectRef]*v1.Pod
	sets    map[types.NamespacedName]bool // of kind StatefulSet
	skipped []manifest.Skipped
	held    string // what is in no file, and why it is still wanted, for people
}

func newContents() *contents {
	return &contents{objects: make(map[volume.ObjectRef]metav1.Object), pods: make(map[volume.ObjectRef]*v1.Pod), sets: make(map[types.NamespacedName]bool)}
}

// afterGone is how long a file must be missing until it counts as removed.
// Editors rename a file away before they write its next version, and what is
// in an emptyDir must not be lost to that.
const afterGone = 500 * time.Millisecond

// newManifestDir begins with what is known of the directory from an earlier run.
func newManifestDir(dir, nodeName string, known *knownManifests, check func(*v1.Pod) error, say func(string)) *manifestDir {
	return &manifestDir{
		dir: dir, known: known, loader: manifest.Loader{NodeName: nodeName}, check: check, say: say,
		files: make(map[string]*watchedFile), seen: make(map[volume.ObjectRef]bool), shown: make(map[string]bool), last: newContents(),
		mounted: func() []volumemanager.VolumeStatus { return nil },
	}
}

// scan reads the directory as it is now. It returns in how long it should be
// called again though no event says so; 0 if it need not be.
func (d *manifestDir) scan() (again time.Duration) {
	began := time.Now()
	d.identify()
	names, err := manifestNames(d.dir)
	if err != nil {
		// That it cannot be read does not mean that nothing is wanted.
		d.complain(&d.fault, fmt.Sprintf("the manifests cannot be read, so that all stays as it is: %v", err))
		d.since = time.Time{}
		return 0
	}
	if d.fault != "" {
		d.fault = ""
		d.say(fmt.Sprintf("the manifests in %s can be read again", d.dir))
	}
	for _, file := range d.files {
		file.there = false
	}
	var fresh []candidate
	for _, name := range names {
		if c, ok := d.read(name); ok {
			fresh = append(fresh, c)
		}
	}
	again = d.age(began)
	if ends := d.writeEnds(); again == 0 || ends > 0 && ends < again {
		again = ends
	}
	d.admitAll(fresh)
	d.ask()
	if d.known.fault != "" && (again == 0 || again > afterRefusal) {
		again = afterRefusal
	}
	return again
}

// afterWrite is how long a file may still count as open for writing after the
// event of its end, many times over.
const afterWrite = 100 * time.Millisecond

// writeEnds returns when to look again at the files that are being written, 0 if
// there are none: the event of their end may come before leases on them are to be
// had, as Linux (6.18) tells of it first. It is later each time.
func (d *manifestDir) writeEnds() (again time.Duration) {
	for _, file := range d.files {
		if !file.there || file.written.IsZero() {
			continue
		}
		if left := max(afterWrite, time.Since(file.written)); again == 0 || left < again {
			again = left
		}
	}
	return again
}

// identify notes which directory it is that has the name.
func (d *manifestDir) identify() {
	id, device, err := identityOf(d.dir)
	if err != nil {
		return
	}
	if id != d.dirID || device != d.device {
		d.dirID, d.device = id, device
		d.seen, d.shown = make(map[volume.ObjectRef]bool), make(map[string]bool)
	}
}

// taken returns what was seen to go from the directory, file by file. What was
// only in another one of its name, or in an earlier run, is not among it: a
// directory that is being filled, or whose disk is not mounted, lacks it, too,
// which is no reason to delete anybody's data.
func (d *manifestDir) taken() map[volume.ObjectRef]bool {
	gone := make(map[volume.ObjectRef]bool)
	for ref := range d.seen {
		if d.last.objects[ref] == nil {
			gone[ref] = true
		}
	}
	return gone
}

// manifestNames lists the files that are manifests by their names, as package
// manifest does, save hidden ones, which are editors'.
func manifestNames(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Type()&^fs.ModeSymlink == 0 && !strings.HasPrefix(e.Name(), ".") &&
			slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// candidate is a new version of a file that may become the good one.
type candidate struct {
	file     *watchedFile
	digest   [sha256.Size]byte
	contents *contents
}

// read returns the file's new version, if there is a valid one.
func (d *manifestDir) read(name string) (candidate, bool) {
	path := filepath.Join(d.dir, name)
	file := d.files[name]
	if file == nil {
		file = &watchedFile{name: name}
		d.files[name] = file
	}
	data, err := readWhole(path)
	if errors.Is(err, fs.ErrNotExist) && isGone(path) {
		return candidate{}, false // just now; age sees it
	}
	file.there, file.gone = true, time.Time{}
	if errors.Is(err, errBeingWritten) {
		file.doubt = true
		if file.written.IsZero() {
			file.written = time.Now()
		}
		return candidate{}, false // its end is an event; writeEnds sees to the rest
	}
	file.written = time.Time{}
	if err != nil {
		d.refuse(file, &manifest.Error{File: path, Err: err})
		return candidate{}, false
	}
	digest := sha256.Sum256(data)
	if file.good != nil && digest == file.digest {
		d.settled(file)
		return candidate{}, false
	}
	set, err := d.loader.Decode(path, data)
	if err != nil {
		d.refuse(file, err)
		return candidate{}, false
	}
	read, err := contentsOf(set)
	if err == nil {
		err = d.checkPods(path, read)
	}
	if err != nil {
		d.refuse(file, err)
		return candidate{}, false
	}
	return candidate{file, digest, read}, true
}

// checkPods returns what is wrong with a file's pods beyond its text.
func (d *manifestDir) checkPods(path string, read *contents) error {
	var faults []error
	for ref, pod := range read.pods {
		if err := d.check(pod); err != nil {
			faults = append(faults, &manifest.Error{File: path, Object: ref.String(), Err: err})
		}
	}
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(faults...)
}

// isGone reports whether nothing is there, not even a link that leads nowhere.
func isGone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

func contentsOf(set *manifest.Set) (*contents, error) {
	c := newContents()
	c.skipped = set.Skipped
	for _, name := range set.StatefulSets {
		c.sets[name] = true
	}
	for _, pod := range set.Pods() {
		c.pods[volume.NewObjectRef("Pod", pod.Namespace, pod.Name)] = pod
	}
	for _, kind := range objects.Kinds() {
		if kind.Kind == "Pod" {
			continue
		}
		list, err := set.List(context.Background(), kind.Kind, "")
		if err != nil {
			return nil, err
		}
		for _, o := range list {
			c.objects[volume.NewObjectRef(kind.Kind, o.GetNamespace(), o.GetName())] = o
		}
	}
	return c, nil
}

// age notes which files are missing from a scan, drops those that have been for
// long enough, and returns when the next one will have been. It goes for all of
// them, also for one that never was good: the pods that it had in an earlier run
// may be in its next version. And it goes for those that were missing before the
// first scan, of which nobody knows.
func (d *manifestDir) age(began time.Time) (again time.Duration) {
	if d.since.IsZero() { // nothing was seen to be missing until now
		d.since = time.Now()
		for _, file := range d.files {
			file.gone = time.Time{}
		}
	}
	wait := func(since time.Time) (over bool) {
		left := afterGone - began.Sub(since)
		if left > 0 && (again == 0 || left < again) {
			again = left
		}
		return left <= 0
	}
	d.early = !wait(d.since)
	for name, file := range d.files {
		if file.there {
			continue
		}
		if file.gone.IsZero() {
			file.gone = time.Now()
		}
		if wait(file.gone) {
			delete(d.files, name)
		}
	}
	return again
}

// admitAll makes candidates good, unless they have an object that another file
// has: which of the two would be meant? An object may move from one candidate
// to another, so they are tried until none can be admitted any more.
func (d *manifestDir) admitAll(candidates []candidate) {
	for {
		left := slices.DeleteFunc(slices.Clone(candidates), func(c candidate) bool { return d.rival(c, candidates) == nil && d.admit(c) })
		if len(left) == len(candidates) || len(left) == 0 {
			for _, c := range left {
				d.refuse(c.file, cmp.Or(d.rival(c, candidates), d.conflict(c)))
			}
			return
		}
		candidates = left
	}
}

// rival says which object another candidate has too, while no good version says
// whose it is. The order of names does not: after a restart, a copy of a file
// that was refused until then would come first.
func (d *manifestDir) rival(c candidate, candidates []candidate) error {
	for _, other := range candidates {
		if other.file == c.file || c.file.good != nil || other.file.good != nil {
			continue
		}
		if err := d.common(c, other.contents, other.file); err != nil {
			return err
		}
	}
	return nil
}

func (d *manifestDir) admit(c candidate) bool {
	if d.conflict(c) != nil {
		return false
	}
	c.file.good, c.file.digest = c.contents, c.digest
	d.settled(c.file)
	for _, s := range c.contents.skipped {
		d.say(s.String())
	}
	return true
}

// conflict says which object another file has too; files that are missing have
// none.
func (d *manifestDir) conflict(c candidate) error {
	for _, other := range d.sorted() {
		if other == c.file || other.good == nil || !other.gone.IsZero() {
			continue
		}
		if err := d.common(c, other.good, other); err != nil {
			return err
		}
	}
	return nil
}

// common says which object of a candidate a version of another file has too.
func (d *manifestDir) common(c candidate, version *contents, other *watchedFile) error {
	for ref := range c.contents.objects {
		if _, twice := version.objects[ref]; twice {
			return d.twice(c, ref, other)
		}
	}
	for ref, pod := range c.contents.pods {
		for otherRef, otherPod := range version.pods {
			if ref == otherRef || pod.UID == otherPod.UID {
				return d.twice(c, ref, other)
			}
		}
	}
	return nil
}

func (d *manifestDir) twice(c candidate, ref volume.ObjectRef, other *watchedFile) error {
	return &manifest.Error{File: filepath.Join(d.dir, c.file.name), Object: ref.String(),
		Err: fmt.Errorf("%w: it is also in %s", manifest.ErrDuplicate, other.name)}
}

// refuse keeps the last good version of a file.
func (d *manifestDir) refuse(file *watchedFile, err error) {
	file.doubt = true
	text := err.Error()
	if file.good != nil {
		text += fmt.Sprintf("; the last good version of %s stays in force", file.name)
	}
	d.complain(&file.fault, text)
}

// settled notes that a file is good, and says so where it was refused.
func (d *manifestDir) settled(file *watchedFile) {
	for ref := range file.good.objects {
		d.seen[ref], d.shown[ref.String()] = true, true
	}
	for ref := range file.good.pods {
		d.shown[ref.String()] = true
	}
	file.doubt = false
	if file.fault != "" {
		file.fault = ""
		d.say(fmt.Sprintf("%s is good again", filepath.Join(d.dir, file.name)))
	}
}

// complain says what is wrong, once.
func (d *manifestDir) complain(fault *string, text string) {
	if *fault != text {
		*fault = text
		d.say(text)
	}
}

// complete reports whether nothing is missing: the directory has been read, every
// file that is there has had a good version, none can be on its way from one name to
// another, and it is the directory that is meant, so that a pod that is in none of
// them is not wanted.
func (d *manifestDir) complete() bool {
	return !d.since.IsZero() && d.allRead() && !d.early && d.question == ""
}

// allRead reports whether every file that is known has had a good version.
func (d *manifestDir) allRead() bool {
	for _, file := range d.files {
		if file.good == nil {
			return false
		}
	}
	return d.fault == ""
}

// faults counts the files that are refused as they are.
func (d *manifestDir) faults() (n int) {
	for _, file := range d.files {
		if file.fault != "" {
			n++
		}
	}
	if d.fault != "" {
		n++
	}
	return n
}

// sorted returns the files in order of their names, those that are missing
// last.
func (d *manifestDir) sorted() []*watchedFile {
	files := make([]*watchedFile, 0, len(d.files))
	for _, file := range d.files {
		files = append(files, file)
	}
	slices.SortFunc(files, func(a, b *watchedFile) int {
		if a.gone.IsZero() != b.gone.IsZero() {
			if a.gone.IsZero() {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.name, b.name)
	})
	return files
}

// wanted returns all objects and pods of all files.
func (d *manifestDir) wanted() *contents {
	all := newContents()
	for _, file := range d.sorted() {
		if file.good == nil {
			continue
		}
		for ref, o := range file.good.objects {
			if _, there := all.objects[ref]; !there {
				all.objects[ref] = o
			}
		}
		for ref, pod := range file.good.pods {
			if _, there := all.pods[ref]; !there {
				all.pods[ref] = pod
			}
		}
		maps.Copy(all.sets, file.good.sets)
	}
	d.hold(all)
	d.last = all
	return all
}
