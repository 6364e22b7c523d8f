// Package tracefile writes the spans of a node's operations to a file, one line of JSON for each,
// in the order in which they end.
package tracefile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/filelock"
	"github.com/podvol/podvol/volume"
)

// Span is one line. Its keys are part of the command's contract.
type Span struct {
	// Step is the operation's name, and below it that of each step within it: SetUp/plugin/mount.
	Step string `json:"step"`
	// Pod is NAMESPACE/NAME. A tear-down of a whole pod knows only its UID.
	Pod     string   `json:"pod,omitempty"`
	PodUID  string   `json:"podUID,omitempty"`
	Node    string   `json:"node,omitempty"`
	Volumes []string `json:"volumes,omitempty"`
	// Object is the claim or volume that an operation on storage is about.
	Object           string    `json:"object,omitempty"`
	PersistentVolume string    `json:"persistentVolume,omitempty"`
	Start            time.Time `json:"start"`
	DurationSeconds  float64   `json:"durationSeconds"`
	// Outcome is "ok" or "error".
	Outcome string `json:"outcome"`
	Error   string `json:"error,omitempty"`
}

const (
	// maxBytes is the size at which a file gets another name, so that there are two of it at most.
	maxBytes = 64 << 20
	// maxWaiting is how many lines wait for the disk at most.
	maxWaiting = 4096
	// pause is how many lines are left out, where a file cannot be renamed, before it is tried again.
	pause = 1000
	// patience is how long Close waits for the disk.
	patience = 2 * time.Second
)

// File is a file of spans. An operation never waits for it: spans that the disk does not take in
// time, or refuses, are left out and counted. Start may be called concurrently.
type File struct {
	path   string
	rename func(string) string
	tell   func(string)
	out    output

	lines          chan []byte
	closing, ended chan struct{}
	told, written  atomic.Int64 // lines
	cause          atomic.Pointer[error]

	limit, size int64 // of the file, in bytes
	cut         bool  // the file's last line is not whole
	skip        int   // lines that are left out before the next rotation is tried
	complained  bool  // people know that lines are left out
}

// output is what lines are written to.
type output interface {
	io.WriteCloser
	Stat() (fs.FileInfo, error)
}

var _ volume.Tracer = (*File)(nil)

// Open opens a file, to add lines at its end, or makes it, readable for its owner alone. It is an error
// while another process writes it. Once it has 64 MiB it is renamed to the path with .1 at its end, in
// whose place it takes, and a new one begins with its mode and owner; where that fails, lines are left
// out. The end of ctx ends the wait for a disk. rename makes paths in errors those that people know.
// tell hears once, and not in Close, that the disk does not take lines.
func Open(ctx context.Context, path string, rename func(string) string, tell func(string)) (*File, error) {
	var f *File // which a call that ctx has ended may still set
	err := new(blockingcall.Group[string]).Do(ctx, path, func() (err error) {
		f, err = begin(path, rename, tell)
		return err
	})
	if err != nil {
		return nil, err
	}
	go f.run()
	return f, nil
}

// begin returns a file whose lines nobody writes yet.
func begin(path string, rename func(string) string, tell func(string)) (*File, error) {
	file, _, err := open(path)
	if err != nil {
		return nil, err
	}
	if isLocked(older(path)) { // by a process that is just rotating it
		file.Close()
		return nil, taken(path)
	}
	f := newFile(path, rename, tell, file)
	f.size, f.cut = endOf(file.File)
	return f, nil
}

// older is the path of the file before.
func older(path string) string { return path + ".1" }

// endOf returns a file's size, and whether its last line is not whole, as after a full disk or a
// power cut.
func endOf(file *os.File) (size int64, cut bool) {
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return 0, false
	}
	last := make([]byte, 1)
	_, err = file.ReadAt(last, info.Size()-1)
	return info.Size(), err == nil && last[0] != '\n'
}

// locked is a file that this process alone writes.
type locked struct{ *os.File }

// Close gives the lock back.
func (l locked) Close() error { return filelock.Close(l.File) }

// open opens and locks a file, or makes it. It follows no link, and opens nothing that is no regular
// file: a FIFO would block, and a device may do anything.
func open(path string) (l locked, made bool, err error) {
	flags := os.O_RDWR | os.O_APPEND | unix.O_NOFOLLOW | unix.O_NONBLOCK
	info, err := os.Lstat(path)
	if made = errors.Is(err, fs.ErrNotExist); made {
		flags |= os.O_CREATE | os.O_EXCL
	} else if err == nil && !info.Mode().IsRegular() {
		return l, false, notRegular(path, info)
	}
	file, err := os.OpenFile(path, flags, 0o600)
	if made && errors.Is(err, fs.ErrExist) {
		return l, false, taken(path)
	}
	if err != nil {
		return l, false, err
	}
	if err = lock(file, path); err != nil {
		file.Close()
		return l, false, err
	}
	return locked{file}, made, nil
}

// lock locks a file, unless another has it locked, or its path is another's meanwhile.
func lock(file *os.File, path string) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return notRegular(path, info)
	}
	err = filelock.Lock(file, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || err == nil && !isAt(path, info) {
		return taken(path)
	}
	return err
}

// isAt says whether a path is that of a file.
func isAt(path string, info fs.FileInfo) bool {
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(there, info)
}

// isLocked says whether a process writes the file at a path, if there is one.
func isLocked(path string) bool {
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		return false
	}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer filelock.Close(file)
	return errors.Is(filelock.Lock(file, unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

func taken(path string) error {
	return fmt.Errorf("another process writes %s, or moves it; name another file, or stop that process", path)
}

func notRegular(path string, info fs.FileInfo) error {
	return fmt.Errorf("%s is no regular file (%s); name one, or a path where nothing is yet", path, info.Mode())
}

func newFile(path string, rename func(string) string, tell func(string), out output) *File {
	return &File{path: path, rename: rename, tell: tell, out: out, limit: maxBytes, lines: make(chan []byte, maxWaiting), closing: make(chan struct{}), ended: make(chan struct{})}
}

// step is the key of a context's step.
type step struct{}

// Start implements volume.Tracer.
func (f *File) Start(ctx context.Context, name string, attributes ...slog.Attr) (context.Context, func(error)) {
	began := time.Now()
	if above, ok := ctx.Value(step{}).(string); ok {
		name = above + "/" + name
	}
	return context.WithValue(ctx, step{}, name), func(err error) {
		s := Span{Step: name, Start: began.UTC(), DurationSeconds: time.Since(began).Seconds(), Outcome: "ok"}
		if err != nil {
			s.Outcome, s.Error = "error", f.rename(err.Error())
		}
		s.describe(attributes)
		f.put(s)
	}
}

// describe says what a span is about, by the attributes of volumemanager and persistentvolume.
func (s *Span) describe(attributes []slog.Attr) {
	var namespace, name string
	for _, a := range attributes {
		switch text := a.Value.String(); a.Key {
		case "k8s.namespace.name":
			namespace = text
		case "k8s.pod.name":
			name = text
		case "k8s.pod.uid":
			s.PodUID = text
		case "k8s.node.name":
			s.Node = text
		case "k8s.volume.name":
			s.Volumes = append(s.Volumes, text)
		case "podvol.object":
			s.Object = text
		case "podvol.persistentvolume":
			s.PersistentVolume = text
		}
	}
	if name != "" {
		s.Pod = namespace + "/" + name
	}
}

// put encodes a span here, not at the disk: a panic of that is the one operation's.
func (f *File) put(s Span) {
	line, err := json.Marshal(s)
	f.told.Add(1)
	if err != nil {
		f.miss(err)
		return
	}
	select {
	case f.lines <- append(line, '\n'):
	default:
		f.miss(errBehind)
	}
}

var errBehind = errors.New("the disk did not take them in time")

// miss notes the first reason why a span is missing.
func (f *File) miss(err error) { f.cause.CompareAndSwap(nil, &err) }

func (f *File) run() {
	defer close(f.ended)
	defer func() { f.out.Close() }() // which is another one after a rotation
	for {
		select {
		case line := <-f.lines:
			f.write(line)
			continue
		case <-f.closing:
		}
		for len(f.lines) > 0 {
			f.write(<-f.lines)
		}
		return
	}
}

// write writes a line. One that was cut off, as where the disk is full, damages no other.
func (f *File) write(line []byte) {
	for f.size > 0 && f.size+int64(len("\n")+len(line)) > f.limit {
		if f.skip > 0 {
			f.skip--
			return
		}
		if err := f.rotate(); err != nil {
			f.skip = pause
			f.lose(err)
			return
		}
	}
	if f.cut {
		line = append([]byte{'\n'}, line...)
	}
	n, err := f.out.Write(line)
	f.size += int64(n)
	if err == nil {
		f.written.Add(1)
		f.cut = false
		return
	}
	f.cut = f.cut && n == 0 || n > 0 && line[n-1] != '\n'
	f.lose(err)
}

// lose notes why a line is missing, and tells people of the first.
func (f *File) lose(err error) {
	f.miss(err)
	if !f.complained {
		f.complained = true
		f.tell(fmt.Sprintf("spans are left out of %s: %v", f.path, err))
	}
}

// rotate renames the file, unless somebody else has moved it, and begins a new one. After an error
// the file goes on to be this one, wherever it is.
func (f *File) rotate() error {
	before, err := f.out.Stat()
	if err != nil {
		return err
	}
	if isAt(f.path, before) {
		if err := os.Rename(f.path, older(f.path)); err != nil {
			return fmt.Errorf("it has %d MiB, and cannot be renamed: %w; see that this process may, or name a file in a directory of its own", maxBytes>>20, err)
		}
	}
	next, made, err := open(f.path)
	if err != nil {
		return fmt.Errorf("it has another name, and no new one begins: %w", err)
	}
	if made {
		makeLike(next.File, before)
	}
	_ = f.out.Close() // its lines are written, or missed; until now, others saw it locked
	f.out = next
	f.size, f.cut = endOf(next.File) // it is empty, unless somebody else has made it
	return nil
}

// makeLike gives a file the owner and mode of another, as far as this process may.
func makeLike(file *os.File, other fs.FileInfo) {
	mode := other.Mode().Perm()
	if like, ok := other.Sys().(*syscall.Stat_t); ok {
		_ = file.Chown(int(like.Uid), -1)
		if file.Chown(-1, int(like.Gid)) != nil {
			mode &^= 0o070 // which were another group's
		}
	}
	_ = file.Chmod(mode)
}

// Close writes the spans that have ended, and closes the file. It does not wait long for a disk. The
// error says how many spans are missing in the file.
func (f *File) Close() error {
	close(f.closing)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-f.ended:
	case <-timer.C:
		f.miss(errBehind)
	}
	told := f.told.Load()
	missing := told - f.written.Load()
	if missing == 0 {
		return nil
	}
	why := errBehind
	if cause := f.cause.Load(); cause != nil {
		why = *cause
	}
	return fmt.Errorf("%d of %d spans are missing in %s: %w", missing, told, f.path, why)
}
