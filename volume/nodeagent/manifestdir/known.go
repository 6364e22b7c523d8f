package manifestdir

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

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/seal"
)

// knownManifests has the names of the objects in the files that were in force
// last. It outlives the command. So the next start can distinguish a directory
// whose disk is not mounted from one whose files were removed.
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
	Version int `json:"schemaVersion"` // knownVersion
	dirIdentity
	// Files are the objects of each file.
	Files map[string][]string `json:"files"`
}

const knownVersion = 2

// markPath is the path of a file beside it. That file says that the known objects
// were stored before. So a lost file is distinguished from a root directory that
// no agent has used.
func markPath(path string) string { return path + ".made" }

// openKnown reads the known objects. A missing file is no fault: then nothing is
// known.
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

// parseKnown refuses all contents that store has not written: a missing name would tear a pod down, with its data.
func parseKnown(data []byte) (k known, err error) {
	line, err := seal.Open(data)
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
	case k.Version != knownVersion:
		return known{}, fmt.Errorf("its schema version is %d, this program knows %d", k.Version, knownVersion)
	case k.Files == nil:
		return known{}, errors.New("it has no files")
	}
	return k, nil
}

// store stores the known objects, before any of them is applied.
func (k *knownManifests) store(now known) error {
	now.Version = knownVersion
	if k.damaged == nil && k.made && !k.absent && k.stored.dirIdentity == now.dirIdentity && maps.EqualFunc(k.stored.Files, now.Files, slices.Equal) {
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

// missing returns the files with an object that is in no file in force and was
// not seen to be removed.
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

// and adds the files that only other has.
func (k known) and(other known) known {
	all := known{dirIdentity: k.dirIdentity, Files: make(map[string][]string)}
	maps.Copy(all.Files, other.Files)
	maps.Copy(all.Files, k.Files)
	return all
}

// with adds all present objects of the files, and drops none.
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

// inForce returns the present objects of the good files.
func (d *Directory) inForce() known {
	now := known{dirIdentity: d.dirID, Files: make(map[string][]string)}
	for name, file := range d.files {
		if file.good == nil {
			continue
		}
		objects := []string{}
		for ref := range file.good.Objects {
			objects = append(objects, ref.String())
		}
		for ref := range file.good.Pods {
			objects = append(objects, ref.String())
		}
		slices.Sort(objects)
		now.Files[name] = objects
	}
	return now
}

// there leaves out the files that are missing.
func (d *Directory) there(now known) known {
	there := known{dirIdentity: now.dirIdentity, Files: maps.Clone(now.Files)}
	maps.DeleteFunc(there.Files, func(name string, _ []string) bool { return !d.files[name].there })
	return there
}

// hasKnownFile reports whether one of the known files exists.
func (d *Directory) hasKnownFile() bool {
	for name, file := range d.files {
		if _, was := d.known.stored.Files[name]; was && file.there {
			return true
		}
	}
	return false
}

// remember stores the objects in force for the next start.
func (d *Directory) remember(now known) {
	err := d.known.store(now)
	if err != nil {
		d.complain(&d.known.fault, fmt.Sprintf("which manifests there are cannot be kept for the next start: %v", err))
		return
	}
	d.known.fault = ""
}
