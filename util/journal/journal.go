// Package journal keeps a small set of keyed values in one file, appended to and never
// overwritten, so that each change costs one short write and at most one sync, however
// many values there are.
//
//   - Changes that are made at the same time share their write and their sync.
//   - The file has one line for each change, with a checksum. It is compacted when it is
//     opened and when it has grown to several times its content.
//   - A crash at any moment loses at most changes whose calls have not returned. Unreadable
//     lines are reported and kept in a copy of the file, never dropped.
//   - A journal belongs to one process; the caller holds a lock to make it so. [Read] may be
//     used beside it.
//   - When the file is removed or replaced, no change is confirmed any more
//     ([ErrReplaced]).
//
// Like every package below util, it carries no promise of compatibility.
package journal

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/eintr"
)

// Entry is what the journal holds for one key. Values are JSON.
type Entry struct {
	Key   string
	Value json.RawMessage
	// Note is the last note on the value since it was put, nil if none.
	Note json.RawMessage
}

// Journal is an open journal. All methods are safe for concurrent use.
type Journal struct {
	path string

	mu      sync.Mutex
	next    *batch // collects changes while another batch is written
	writing bool   // writeAll runs
	closed  bool
	idle    sync.Cond

	// What follows belongs to writeAll while it runs.
	file   *os.File
	proof  *os.File // nil where there is none
	id     string   // the file's own
	stale  bool     // file need not be the one at path
	end    int64    // where the next line goes
	synced int64    // up to where the file is known to be on disk
	zeroed int64    // up to where the file is allocated and zero
	// reserved is up to where blocks are allocated, and room how many bytes all
	// entries will need, each of which is in needs.
	reserved, room int64
	needs          map[string]need
	compact        int64 // the size at which the file is compacted
	// suspect is set when it is not known what the file on disk holds; it is
	// read and written anew before the next change.
	suspect bool
	text    []byte // room for the lines of a batch
	ahead   int64  // how far ahead the file is filled with zeros
	// Seams for tests: durable.WriteFile, os.OpenFile, pwrite(2), fdatasync(2) and
	// fallocate(2).
	replace  func(path string, data []byte) error
	open     func(path string) (*os.File, error)
	writeAt  func(file *os.File, data []byte, offset int64) (int, error)
	flush    func(*os.File) error
	allocate func(file *os.File, offset, size int64) error
}

// batch is changes that are written, and if asked for synced, together.
type batch struct {
	changes []*change
	done    chan struct{} // closed when the changes' errors are set
}

// change is lines that are written together, in their order, or not at all.
type change struct {
	lines []line
	text  []byte
	sync  bool
	err   error
}

// ahead is how far ahead the file is filled with zeros. Writing into them changes
// no metadata of the file, which makes its sync several times cheaper than an
// append's.
const ahead = 256 << 10

// slack is how much beyond twice its contents a journal may grow: more than
// thousands of entries need, so that none is compacted for growing only.
const slack = 4 << 20

// Open opens the journal at path, creates it (0600) if it is not there, and
// returns its content, in no particular order, and its damage, each a
// *[DamagedError]; the whole file is then kept beside the journal under the name
// that the errors tell. As long as such a copy is there, its damage is returned
// by each Open and [Read]. A torn last line, as a crash leaves it, is no damage.
//
// On a full disk, which has no room for a new file, a file that is not damaged is used
// as it is: the caller may open the journal to make room.
func Open(path string) (j *Journal, held []Entry, damaged []error, err error) {
	j = newJournal(path)
	return j.start()
}

func newJournal(path string) *Journal {
	j := &Journal{path: path, ahead: ahead, replace: replaceFile, open: openFile, writeAt: writeAt, flush: fdatasync,
		allocate: allocateBlocks, needs: make(map[string]need)}
	j.idle.L = &j.mu
	return j
}

func (j *Journal) start() (_ *Journal, held []Entry, damaged []error, err error) {
	path := j.path
	content, err := readContent(path)
	if err != nil {
		return nil, nil, nil, err
	}
	if len(content.damaged) > 0 {
		if err := keepDamaged(path); err != nil {
			return nil, nil, nil, err
		}
	}
	damaged, err = KeptDamage(path)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := j.take(content); err != nil {
		return nil, nil, nil, err
	}
	j.reserveAll(content.held)
	j.openProof()
	return j, content.held, damaged, nil
}

// take opens the file, which is written anew first where it needs that.
func (j *Journal) take(c content) error {
	whole := c.exists && !c.torn && len(c.damaged) == 0 && c.end < 2*slack
	if whole {
		return j.use(c.end, c.id)
	}
	err := j.rewrite(c)
	own, ok := errors.AsType[*durable.Error](err)
	if !ok || own.Replaced || !c.exists || len(c.damaged) > 0 {
		return err
	}
	if err := j.use(c.end, c.id); err != nil {
		return err
	}
	return j.cut()
}

func replaceFile(path string, data []byte) error { return durable.WriteFile(path, data, 0o600) }

func openFile(path string) (*os.File, error) { return os.OpenFile(path, os.O_RDWR, 0) }

func writeAt(file *os.File, data []byte, offset int64) (int, error) {
	return file.WriteAt(data, offset)
}

func fdatasync(file *os.File) error {
	return eintr.Do(func() error { return unix.Fdatasync(int(file.Fd())) })
}

// Put sets the value of key, drops its note, and returns when that will
// survive a crash. The value must be valid JSON. After an error the old value,
// or the new one, will be found. Where the disk has no room left for the deletion
// of every key too, the error matches unix.ENOSPC, and the old value stays.
func (j *Journal) Put(key string, value json.RawMessage) error {
	return j.change(line{Op: opPut, Key: key, Value: value}, true)
}

// Note sets the note of key and returns when it is written. It does not wait
// for the disk: a crash may lose it. The note of a key without value is lost.
func (j *Journal) Note(key string, note json.RawMessage) error {
	return j.change(line{Op: opNote, Key: key, Value: note}, false)
}

// Delete removes key and returns when that will survive a crash. A key that is
// not there is success.
func (j *Journal) Delete(key string) error {
	return j.change(line{Op: opDelete, Key: key}, true)
}

// Forget is [Journal.Delete] of several keys, in one write, that does not wait for the
// disk: after a crash some of them may be there again.
func (j *Journal) Forget(keys ...string) error {
	if len(keys) == 0 {
		return nil
	}
	lines := make([]line, len(keys))
	for i, key := range keys {
		lines[i] = line{Op: opDelete, Key: key}
	}
	return j.changes(false, lines...)
}

// Move puts the value at another key and deletes this one, in one write and one
// sync, and returns when both will survive a crash. A crash before that, or an error,
// may leave the value at the new key and the old key as it was.
func (j *Journal) Move(key, to string, value json.RawMessage) error {
	return j.changes(true, line{Op: opPut, Key: to, Value: value}, line{Op: opDelete, Key: key})
}

// Close waits for the changes under way and closes the file. Calls after it
// fail with os.ErrClosed.
func (j *Journal) Close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for j.writing {
		j.idle.Wait()
	}
	if j.closed {
		return nil
	}
	j.closed = true
	if j.proof != nil {
		j.proof.Close()
	}
	return j.file.Close()
}

func (j *Journal) change(l line, sync bool) error { return j.changes(sync, l) }

// changes writes lines together, in this order.
func (j *Journal) changes(sync bool, lines ...line) error {
	c := &change{lines: lines, sync: sync}
	for _, l := range lines {
		var err error
		if c.text, err = l.appendTo(c.text); err != nil {
			return err
		}
	}
	b, err := j.enqueue(c)
	if err != nil {
		return err
	}
	<-b.done
	return c.err
}

func (j *Journal) enqueue(c *change) (*batch, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil, &Error{Op: "write", Path: j.path, Err: os.ErrClosed}
	}
	if j.next == nil {
		j.next = &batch{done: make(chan struct{})}
	}
	b := j.next
	b.changes = append(b.changes, c)
	if !j.writing {
		j.writing = true
		go j.writeAll()
	}
	return b, nil
}

// writeAll writes batch after batch until none is waiting.
func (j *Journal) writeAll() {
	for {
		runtime.Gosched() // whose turn it is may have changes too, which then share the write
		j.mu.Lock()
		b := j.next
		j.next = nil
		if b == nil {
			j.writing = false
			j.idle.Broadcast()
			j.mu.Unlock()
			return
		}
		j.mu.Unlock()
		j.write(b.changes)
		close(b.done)
	}
}

// write appends changes, and sets their errors.
func (j *Journal) write(changes []*change) {
	err := j.ready()
	if err == nil {
		changes = j.admit(changes)
	}
	if err == nil && len(changes) > 0 {
		err = j.append(changes)
	}
	for _, c := range changes {
		c.err = err
	}
}

// ready puts the file right where it is not known what it holds.
func (j *Journal) ready() error {
	if !j.suspect {
		return nil
	}
	return j.repair()
}

func (j *Journal) append(changes []*change) error {
	text := j.text[:0]
	sync := false
	for _, c := range changes {
		text = append(text, c.text...)
		sync = sync || c.sync
	}
	if j.text = nil; cap(text) <= ahead { // a giant one is not kept
		j.text = text
	}
	end := j.end + int64(len(text))
	if end > j.zeroed {
		j.extend(end)
	}
	if _, err := j.writeAt(j.file, text, j.end); err != nil {
		j.suspect = j.cut() != nil // a part of the lines may be there
		return &Error{Op: "write", Path: j.path, Err: err}
	}
	if sync {
		if err := j.flush(j.file); err != nil {
			j.suspect = true // the kernel may have dropped the pages
			return &Error{Op: "sync", Path: j.path, Err: err}
		}
	}
	j.end = end
	j.updateNeeds(changes)
	if err := j.inPlace(); err != nil {
		return err
	}
	if sync {
		j.synced = end
		j.prove()
	}
	if j.end >= j.compact {
		j.compactNow()
	}
	return nil
}

// inPlace looks whether the file that is written is the one that is opened next.
// It is not put back, since another process may have locked the file there now.
func (j *Journal) inPlace() error {
	if j.stale {
		return nil
	}
	is, err := durable.InPlace(j.file, j.path)
	if err == nil && !is {
		err = ErrReplaced
	}
	if err != nil {
		return &Error{Op: "write", Path: j.path, Err: err}
	}
	return nil
}

// repair writes what the file shows into a new one.
func (j *Journal) repair() error {
	if err := j.inPlace(); err != nil {
		return err
	}
	content, err := readContent(j.path)
	if err == nil && !content.exists {
		err = &Error{Op: "write", Path: j.path, Err: ErrReplaced}
	}
	if err != nil {
		return err
	}
	if len(content.damaged) > 0 {
		if err := keepDamaged(j.path); err != nil {
			return err
		}
	}
	if err := j.rewrite(content); err != nil {
		return err
	}
	j.suspect = false
	return nil
}

// extend fills the file with zeros beyond its lines. That only saves time, so a
// disk without room for them is no failure yet. An earlier attempt may have
// failed, and lines been written beyond what it had filled: nothing is ever
// written before the end of the lines.
func (j *Journal) extend(end int64) {
	from := max(j.zeroed, j.end)
	n, _ := j.writeAt(j.file, make([]byte, (end/j.ahead+1)*j.ahead-from), from)
	j.zeroed = from + int64(n)
}

// compactNow rewrites the file with what it holds. A failure is no failure of
// the change that asked for it: the old file goes on.
func (j *Journal) compactNow() {
	content, err := readContent(j.path)
	if err != nil || !content.exists || len(content.damaged) > 0 {
		j.compact = 2 * j.end // it is sorted out when the journal is next opened
		return
	}
	if err := j.rewrite(content); err != nil {
		j.compact = j.end + slack
		// The new file may be in place, but not for sure on disk.
		own, ok := errors.AsType[*durable.Error](err)
		j.suspect = !ok || own.Replaced
	}
}

// rewrite replaces the file by one with just what it held and opens it. When
// it fails j.file is as before, which need not be the file at j.path any more.
func (j *Journal) rewrite(c content) error {
	id := rand.Text()
	text, err := line{Op: opBegin, Key: id}.encode()
	if err != nil {
		return err
	}
	for _, l := range c.lines {
		text = append(text, l...)
	}
	before := j.stale
	j.stale = true
	if err := j.replace(j.path, text); err != nil {
		if own, ok := errors.AsType[*durable.Error](err); ok && !own.Replaced {
			j.stale = before
		}
		return err
	}
	if err := j.use(int64(len(text)), id); err != nil {
		return err
	}
	j.synced = j.end
	j.prove()
	j.reserveAll(c.held)
	return nil
}

// use opens the file, which holds lines up to end and only zeros beyond.
func (j *Journal) use(end int64, id string) error {
	file, err := j.open(j.path)
	if err != nil {
		return &Error{Op: "open", Path: j.path, Err: err}
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return &Error{Op: "open", Path: j.path, Err: err}
	}
	if j.file != nil {
		j.file.Close() // the old one: nothing in it is waited for
	}
	j.file, j.stale, j.id, j.end, j.synced, j.zeroed, j.compact = file, false, id, end, 0, info.Size(), 2*end+slack
	j.reserved = 0
	return nil
}
