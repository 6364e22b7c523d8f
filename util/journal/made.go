package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/podvol/podvol/util/durable"
)

// A journal has a second file beside it, its proof: the journal was made, and was on disk
// up to this place at some time since. So a journal that is missing, was emptied or has
// lost its end is told from a new one, also where it was cut between two lines. The proof
// is made after the journal. It is one line of fixed length, overwritten and not synced: it
// is true whether or not the last update has reached the disk. A missing one is made anew.
//
// A third file, the witness, is empty, and says only that the journal was made. Its name
// begins differently, so that it survives a removal by the beginning of their names.

// proof is what the second file says; the zero value: there is none.
type proof struct {
	made bool
	// id is the id of the file that had this many bytes of lines on disk. A file
	// that was written anew since has another.
	id  string
	end int64
}

const opProof = "proof"

func proofPath(path string) string { return path + ".made" }

func witnessPath(path string) string {
	dir, base := filepath.Split(path)
	return filepath.Join(dir, "."+base+".made")
}

func (p proof) encode() ([]byte, error) {
	size, err := json.Marshal(fmt.Sprintf("%019d", p.end))
	if err != nil {
		return nil, err
	}
	return line{Op: opProof, Key: p.id, Value: size}.encode()
}

// readProof reads the proof of a journal. One that says nothing that can be read
// still proves that the journal was made, and so does the witness.
func readProof(path string) (proof, error) {
	text, err := os.ReadFile(proofPath(path))
	if errors.Is(err, fs.ErrNotExist) {
		return readWitness(path)
	}
	if err != nil {
		return proof{}, &Error{Op: "read", Path: proofPath(path), Err: err}
	}
	p := proof{made: true}
	if len(text) == 0 || text[len(text)-1] != '\n' {
		return p, nil
	}
	var l line
	if l, err = decodeLine(text[:len(text)-1]); err != nil || l.Op != opProof {
		return p, nil
	}
	var size string
	if json.Unmarshal(l.Value, &size) != nil {
		return p, nil
	}
	if end, err := strconv.ParseInt(size, 10, 64); err == nil {
		p.id, p.end = l.Key, end
	}
	return p, nil
}

func readWitness(path string) (proof, error) {
	_, err := os.Lstat(witnessPath(path))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return proof{}, &Error{Op: "read", Path: witnessPath(path), Err: err}
	}
	return proof{made: err == nil}, nil
}

// bearWitness makes the witness, if it is not there. Like the proof it is not synced,
// and only serves to find damage.
func (j *Journal) bearWitness() {
	file, err := os.OpenFile(witnessPath(j.path), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		file.Close()
	}
}

// openProof opens the journal's proof, and makes it if it is not there. It only
// serves to find damage, so where it cannot be made, the journal goes on without:
// a full disk is no reason not to read the journal.
func (j *Journal) openProof() {
	j.bearWitness()
	if j.proof == nil {
		file, err := j.open(proofPath(j.path))
		if errors.Is(err, fs.ErrNotExist) {
			text, failure := proof{id: j.id, end: j.synced}.encode()
			if failure != nil || j.replace(proofPath(j.path), text) != nil {
				return
			}
			file, err = j.open(proofPath(j.path))
		}
		if err != nil {
			return
		}
		j.proof = file
	}
	j.prove()
}

// prove notes how much of the file is on disk, once that is known.
func (j *Journal) prove() {
	if j.proof == nil || j.synced == 0 {
		return
	}
	if text, err := (proof{id: j.id, end: j.synced}).encode(); err == nil {
		_, _ = j.writeAt(j.proof, text, 0)
	}
}

var (
	errMissing = errors.New("it is missing, although it was made once: whatever it held is lost")
	errEmptied = errors.New("it does not begin as every journal does: it was emptied, or another file was put in its place, or an unknown version wrote it")
	errCut     = errors.New("its end is lost: it was longer once")
	errKept    = errors.New("it was not whole when it was read")
	errGone    = errors.New("it was missing when it was opened, although it was made once: whatever it held is lost")
)

// compare looks whether a journal is what its proof says.
func (c *content) compare(path string, p proof) {
	switch {
	case !c.exists && !p.made: // it is new
	case !c.exists:
		c.damage(path, 0, errMissing)
	case c.id == "" && len(c.damaged) == 0:
		c.damage(path, 0, errEmptied)
	case c.id == p.id && p.id != "" && c.end < p.end:
		c.damage(path, 0, errCut)
	}
}

// keptPrefix is how the names of copies of a damaged journal begin.
func keptPrefix(base string) string { return base + ".damaged-" }

// goneName is the name of what tells of a journal that was missing.
func goneName(base string) string { return keptPrefix(base) + "missing" }

// keepDamaged copies the file beside itself, so that the damage is found again
// until a person takes the copy away. For a missing file there is an empty one of
// another name.
func keepDamaged(path string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return durable.WriteFile(goneName(path), nil, 0o600)
	}
	if err != nil {
		return &Error{Op: "read", Path: path, Err: err}
	}
	text = trimZeros(text)
	return durable.WriteFile(fmt.Sprintf("%s%08x", keptPrefix(path), checksum(text)), text, 0o600)
}
