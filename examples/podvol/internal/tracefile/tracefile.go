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
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/blockingcall"
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
	// patience is how long Close waits for the disk.
	patience = 2 * time.Second
)

// File is a file of spans. An operation never waits for it: spans that the disk does not take in
// time, or refuses, are left out and counted. Start may be called concurrently.
type File struct {
	path   string
	rename func(string) string
	out    io.WriteCloser

	lines          chan []byte
	closing, ended chan struct{}
	told, written  atomic.Int64 // lines
	cause          atomic.Pointer[error]

	limit, size int64 // of the file, in bytes
	cut         bool  // the file's last line is not whole
}

var _ volume.Tracer = (*File)(nil)

// Open opens a file, to add lines at its end, or makes it, readable for its owner alone. Once it has
// 64 MiB it is renamed to the path with .1 at its end, in whose place it takes, and a new one begins.
// The end of ctx ends the wait for a disk. rename makes paths in errors those that people know.
func Open(ctx context.Context, path string, rename func(string) string) (*File, error) {
	var file *os.File // which a call that ctx has ended may still set
	var size int64
	var cut bool
	err := new(blockingcall.Group[string]).Do(ctx, path, func() (err error) {
		if file, err = open(path); err == nil {
			size, cut = endOf(file)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	f := newFile(path, rename, file)
	f.size, f.cut = size, cut
	go f.run()
	return f, nil
}

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

// open follows no link, and opens nothing that is no regular file: a FIFO would block, and a device
// may do anything.
func open(path string) (*os.File, error) {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return nil, notRegular(path, info)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() { // it has been replaced meanwhile
		err = notRegular(path, info)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func notRegular(path string, info fs.FileInfo) error {
	return fmt.Errorf("%s is no regular file (%s); name one, or a path where nothing is yet", path, info.Mode())
}

func newFile(path string, rename func(string) string, out io.WriteCloser) *File {
	return &File{path: path, rename: rename, out: out, limit: maxBytes, lines: make(chan []byte, maxWaiting), closing: make(chan struct{}), ended: make(chan struct{})}
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
	if f.size > 0 && f.size+int64(len(line)) > f.limit {
		f.rotate()
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
	f.miss(err)
}

// rotate renames the file and begins a new one. Where it cannot, it goes on with the file that it has,
// and the next line tries again.
func (f *File) rotate() {
	older := f.path + ".1"
	if err := os.Rename(f.path, older); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return
	}
	next, err := open(f.path)
	if err != nil {
		_ = os.Rename(older, f.path)
		return
	}
	_ = f.out.Close() // its lines are written, or missed
	f.out = next
	f.size, f.cut = endOf(next) // it is empty, unless somebody else has made it
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
