package manifestdir

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Config names the directory of manifests to follow and its node.
type Config struct {
	// Dir is the directory's absolute path.
	Dir string
	// KnownFile is the path of the file that keeps the names of the directory's
	// objects for the next start. It is made if it is missing, with a second file
	// beside it, whose name ends in .made.
	KnownFile string
	// NodeName is this node's name: pods of other nodes are left out.
	NodeName string
	// Check returns an error for a pod whose text is correct but which is wrong
	// for another reason. Then the pod's file is refused. Nil: there is no such
	// check.
	Check func(*v1.Pod) error
	// Mounted returns the volumes of pods that are mounted on this node. Nil: none is.
	Mounted func() []volumemanager.VolumeStatus
	// Accept takes the directory as it is, also if it is empty or another one
	// than before.
	Accept bool
	// AcceptHint names the way in which a person sets Accept, for questions, such
	// as "--accept-manifests". Empty: "Config.Accept".
	AcceptHint string
	// Notice receives a sentence for people about each change that they may want
	// to act on, such as a refused file. Nil drops it. Only [Directory.Scan]
	// calls it.
	Notice func(sentence string)
}

// Directory is a directory of manifests. Each file counts in its last good
// version. One goroutine at a time may use it. It never changes a manifest.
type Directory struct {
	dir        string
	loader     manifest.Loader     // with a node's name
	check      func(*v1.Pod) error // other faults of a pod
	say        func(message string)
	acceptHint string
	files      map[string]*watchedFile
	fault      string    // why the directory cannot be read
	unread     time.Time // since when there has been a fault
	since      time.Time // when it could be read first, or again
	early      bool      // a file may have been on its way to another name at since
	dirID      dirIdentity
	device     uint64 // of the directory
	// seen are the objects that good files have had in that directory, since this
	// run began or the directory appeared.
	seen map[volume.ObjectRef]bool
	last *Contents // that were wanted

	known    *knownManifests                     // what the directory had
	accept   bool                                // the directory is meant as it is, whatever it had
	mounted  func() []volumemanager.VolumeStatus // of pods
	question string                              // what a person has to answer before anything goes; empty: nothing
	asked    time.Time                           // since when there has been a question
	shown    map[string]bool                     // like seen, with pods
}

// New begins with the objects in the file of known objects from an earlier run.
// It reads no manifest: [Directory.Scan] does.
func New(c Config) *Directory {
	d := &Directory{
		dir: c.Dir, known: openKnown(c.KnownFile), loader: manifest.Loader{NodeName: c.NodeName},
		check: c.Check, say: c.Notice, accept: c.Accept, acceptHint: cmp.Or(c.AcceptHint, "Config.Accept"), mounted: c.Mounted,
		files: make(map[string]*watchedFile), seen: make(map[volume.ObjectRef]bool), shown: make(map[string]bool), last: newContents(),
	}
	if d.check == nil {
		d.check = func(*v1.Pod) error { return nil }
	}
	if d.say == nil {
		d.say = func(string) {}
	}
	if d.mounted == nil {
		d.mounted = func() []volumemanager.VolumeStatus { return nil }
	}
	return d
}

// Question returns the question that a person must answer before missing objects
// count as removed; empty: none. It is from the last scan.
func (d *Directory) Question() string { return d.question }

// Scan reads the directory. It returns the time after which it should be called
// again even without an event of [Watch]; 0: it need not be called.
func (d *Directory) Scan() (again time.Duration) {
	began := time.Now()
	d.identify()
	names, err := manifestNames(d.dir)
	if err != nil {
		// A directory that cannot be read does not mean that nothing is wanted.
		if d.fault == "" {
			d.unread = time.Now()
		}
		d.complain(&d.fault, fmt.Sprintf("the manifests cannot be read, so that all stays as it is: %v", err))
		d.since = time.Time{}
		return 0
	}
	if d.fault != "" {
		d.fault, d.unread = "", time.Time{}
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
	if d.known.fault != "" && (again == 0 || again > storeRetry) {
		again = storeRetry
	}
	return again
}

// afterWrite is how long a file may still count as open for writing after the
// event of its end, with a large margin.
const afterWrite = 100 * time.Millisecond

// writeEnds returns the time of the next read of the files that are being
// written; 0: there are none. The event of their end may come before leases on
// them are available, because Linux (6.18) sends it first. The time grows with
// each call.
func (d *Directory) writeEnds() (again time.Duration) {
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

// identify records which directory has the name now.
func (d *Directory) identify() {
	id, device, err := identityOf(d.dir)
	if err != nil {
		return
	}
	if id != d.dirID || device != d.device {
		d.dirID, d.device = id, device
		d.seen, d.shown = make(map[volume.ObjectRef]bool), make(map[string]bool)
	}
}

// Taken returns the objects that were removed from the directory file by file
// while this run watched. It leaves out objects that were only in another
// directory of this name, or in an earlier run. A directory that is being filled,
// or whose disk is not mounted, lacks those, too. That is no reason to delete
// data.
func (d *Directory) Taken() map[volume.ObjectRef]bool {
	gone := make(map[volume.ObjectRef]bool)
	for ref := range d.seen {
		if d.last.Objects[ref] == nil {
			gone[ref] = true
		}
	}
	return gone
}

// age records which files are missing from a scan. It drops the files that have
// been missing for long enough, and returns when the next one will be. This also
// applies to
//
//   - files that never were good: the pods of an earlier run may be in their next
//     version;
//   - files that were missing before the first scan, which are not known.
func (d *Directory) age(began time.Time) (again time.Duration) {
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

// complain reports a fault once.
func (d *Directory) complain(fault *string, text string) {
	if *fault != text {
		*fault = text
		d.say(text)
	}
}

// Complete reports whether a pod that is in no file is unwanted. Then all of this
// holds:
//
//   - The directory has been read, and it is the intended one.
//   - Every file in it has had a good version.
//   - No file can be on its way from one name to another.
func (d *Directory) Complete() bool {
	return !d.since.IsZero() && d.AllRead() && !d.early && d.question == ""
}

// AllRead reports whether every known file has had a good version.
func (d *Directory) AllRead() bool {
	for _, file := range d.files {
		if file.good == nil {
			return false
		}
	}
	return d.fault == ""
}

// sorted returns the files in order of their names, missing files last.
func (d *Directory) sorted() []*watchedFile {
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

// Wanted returns all objects and pods of all files.
func (d *Directory) Wanted() *Contents {
	all := newContents()
	for _, file := range d.sorted() {
		if file.good == nil {
			continue
		}
		for ref, o := range file.good.Objects {
			if _, there := all.Objects[ref]; !there {
				all.Objects[ref] = o
			}
		}
		for ref, pod := range file.good.Pods {
			if _, there := all.Pods[ref]; !there {
				all.Pods[ref] = pod
			}
		}
		maps.Copy(all.StatefulSets, file.good.StatefulSets)
	}
	d.hold(all)
	d.last = all
	return all
}

// storeRetry is the back-off after a failed store of the known objects. It is for
// full disks.
const storeRetry = 10 * time.Second

// afterGone is how long a file must be missing until it counts as removed.
// Editors rename a file away before they write its next version. That must not
// cost the data of an emptyDir.
const afterGone = 500 * time.Millisecond
