package manifest

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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

// readDir reads the manifests of a directory. It leaves out subdirectories and
// everything that is no file, such as a pipe without a writer.
func (l Loader) readDir(dir string) (files []file, faults []error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, []error{&Error{File: dir, Err: err}}
	}
	none := true
	for _, entry := range entries { // in order of their names
		if entry.Type()&^fs.ModeSymlink != 0 || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(entry.Name())) {
			continue
		}
		none = false
		got, err := l.readPath(filepath.Join(dir, entry.Name()))
		files, faults = append(files, got...), append(faults, err...)
	}
	if none {
		return nil, []error{&Error{File: dir, Err: fmt.Errorf("%w: the directory has no .yaml, .yml or .json file", ErrEmpty)}}
	}
	return files, faults
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
