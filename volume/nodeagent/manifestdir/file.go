package manifestdir

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/volume/objects/manifest"
)

// watchedFile is one file.
type watchedFile struct {
	name    string
	good    *Contents // the last good version; nil: there was none
	digest  [sha256.Size]byte
	fault   string    // the fault of the file as it is now
	refused time.Time // since when there has been a fault; zero: there is none
	stale   bool      // the version that is there now is not the good one
	there   bool      // in the last scan
	written time.Time // when it was found first to be open for writing; zero while it is not
	gone    time.Time // when it was missed first; zero while it is there
}

// manifestNames lists the files that are manifests by their names, as package
// manifest does. It leaves out hidden files, which belong to editors. Pipes and the like
// are among them: [Directory] refuses those by name.
func manifestNames(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.IsDir() && !strings.HasPrefix(e.Name(), ".") &&
			slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// read returns the file's new version, if there is a valid one.
func (d *Directory) read(name string) (candidate, bool) {
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
		file.stale = true
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

// checkPods returns the errors of a file's pods that Check finds.
func (d *Directory) checkPods(path string, read *Contents) error {
	var faults []error
	for ref, pod := range read.Pods {
		if err := d.check(pod); err != nil {
			faults = append(faults, &manifest.Error{File: path, Object: ref.String(), Err: err})
		}
	}
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(faults...)
}

// isGone reports whether nothing is there, not even a broken link.
func isGone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// refuse keeps the last good version of a file.
func (d *Directory) refuse(file *watchedFile, err error) {
	file.stale = true
	text := err.Error()
	if file.good != nil {
		text += fmt.Sprintf("; the last good version of %s stays in force", file.name)
	}
	if file.fault == "" {
		file.refused = time.Now()
	}
	d.complain(&file.fault, text)
}

// settled records that a file is good, and reports it if it was refused before.
func (d *Directory) settled(file *watchedFile) {
	for ref := range file.good.Objects {
		d.seen[ref], d.shown[ref.String()] = true, true
	}
	for ref := range file.good.Pods {
		d.shown[ref.String()] = true
	}
	file.stale = false
	if file.fault != "" {
		file.fault, file.refused = "", time.Time{}
		d.say(fmt.Sprintf("%s is good again", filepath.Join(d.dir, file.name)))
	}
}

// errBeingWritten says that another process has the file open for writing.
var errBeingWritten = errors.New("it is being written")

// readWhole returns the contents of a file that is not being written: half a
// manifest can look like a whole one with fewer pods.
//
//   - A read lease (fcntl(2), F_SETLEASE) is refused while a file is open for
//     writing. It keeps writers out during the read.
//   - Leases are not available on network file systems and for another user's
//     file. Such a file is read as it is.
func readWhole(path string) ([]byte, error) {
	f, err := manifest.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// The lease ends with the file's last descriptor.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); errors.Is(err, unix.EAGAIN) {
		return nil, errBeingWritten
	}
	return io.ReadAll(io.LimitReader(f, manifest.MaxFileBytes+1))
}
