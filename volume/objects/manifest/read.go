package manifest

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"unicode/utf8"
)

// MaxFileBytes is the size above which a file is refused.
const MaxFileBytes = 16 << 20

// stdinName is the path that means standard input.
const stdinName = "-"

// file is one file, read.
type file struct {
	name string
	data []byte
}

// read reads all paths, in their order.
func (l Loader) read(paths []string) (files []file, faults []error) {
	if len(paths) == 0 {
		return nil, []error{&Error{File: "manifests", Err: ErrEmpty}}
	}
	stdin := false
	for _, path := range paths {
		if path == stdinName && stdin {
			faults = append(faults, &Error{File: path, Err: fmt.Errorf("standard input can be read only once")})
			continue
		}
		stdin = stdin || path == stdinName
		got, err := l.readPath(path)
		if err != nil {
			faults = append(faults, err...)
		}
		files = append(files, got...)
	}
	return files, faults
}

func (l Loader) readPath(path string) ([]file, []error) {
	if path == stdinName {
		in := l.Stdin
		if in == nil {
			in = os.Stdin
		}
		return readFile(path, in)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, []error{&Error{File: path, Err: err}}
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, []error{&Error{File: path, Err: err}}
	}
	if info.IsDir() {
		return l.readDir(path)
	}
	return readFile(path, f)
}

// readDir reads the manifests of a directory. It leaves out subdirectories.
func (l Loader) readDir(dir string) (files []file, faults []error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, []error{&Error{File: dir, Err: err}}
	}
	none := true
	for _, entry := range entries { // in order of their names
		if entry.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(entry.Name())) {
			continue
		}
		none = false
		path := filepath.Join(dir, entry.Name())
		f, err := Open(path)
		if err != nil {
			faults = append(faults, &Error{File: path, Err: err})
			continue
		}
		got, wrong := readFile(path, f)
		f.Close()
		files, faults = append(files, got...), append(faults, wrong...)
	}
	if none {
		return nil, []error{&Error{File: dir, Err: fmt.Errorf("%w: the directory has no .yaml, .yml or .json file", ErrEmpty)}}
	}
	return files, faults
}

// Open opens a manifest that a directory has. What is no regular file is an error that names its
// kind, and is not opened: a device may act on that, and a writer of a pipe would go on.
func Open(path string) (*os.File, error) {
	found, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !found.Mode().IsRegular() {
		return nil, notRegular(found.Mode())
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() { // it has been replaced meanwhile
		err = notRegular(info.Mode())
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func notRegular(mode fs.FileMode) error {
	kind := "no file"
	switch {
	case mode.IsDir():
		kind = "a link to a directory"
	case mode&fs.ModeNamedPipe != 0:
		kind = "a named pipe"
	case mode&fs.ModeSocket != 0:
		kind = "a socket"
	case mode&fs.ModeDevice != 0:
		kind = "a device"
	}
	return fmt.Errorf("it is %s; a manifest must be a regular file", kind)
}

func readFile(name string, r io.Reader) ([]file, []error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxFileBytes+1))
	if err == nil {
		err = checkText(data)
	}
	if err != nil {
		return nil, []error{&Error{File: name, Err: err}}
	}
	return []file{{name: name, data: data}}, nil
}

func checkText(data []byte) error {
	switch {
	case len(data) > MaxFileBytes:
		return ErrTooLarge
	case bytes.IndexByte(data, 0) >= 0 || !utf8.Valid(data):
		return ErrNotText
	}
	return nil
}
