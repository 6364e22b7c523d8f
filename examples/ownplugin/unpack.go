package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/volume"
)

const (
	// maxBytes and maxEntries are what an archive may unpack to.
	maxBytes   = 64 << 20
	maxEntries = 10_000
	// tmpfsSize leaves room for the last page of each file.
	tmpfsSize = maxBytes + maxEntries*4096
)

// openArchive opens the tar file and refuses it as a whole before anything is
// written, if there is anything in it but files and directories with harmless
// names, or too much.
func openArchive(ctx context.Context, path string) (*os.File, error) {
	// Without O_NONBLOCK a named pipe would wait for a writer.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := checkArchive(ctx, file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func checkArchive(ctx context.Context, file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return volume.Invalid("flexVolume.options.path", "%s is no regular file", file.Name())
	}
	var bytes, entries int64
	return eachEntry(ctx, file, func(header *tar.Header, _ io.Reader) error {
		entries++
		bytes += header.Size
		switch {
		case header.Typeflag != tar.TypeReg && header.Typeflag != tar.TypeDir:
			return refused(file, "entry %q is neither a file nor a directory", header.Name)
		case !filepath.IsLocal(header.Name):
			return refused(file, "entry %q leads out of the volume", header.Name)
		case header.Size > maxBytes || bytes > maxBytes || entries > maxEntries:
			return refused(file, "it is larger than %d bytes or %d entries", maxBytes, maxEntries)
		}
		return nil
	})
}

func refused(file *os.File, format string, args ...any) error {
	return volume.Invalid("archive "+file.Name(), format, args...)
}

// unpack writes the archive into dir. The rest of an earlier try is
// overwritten. Names are resolved below dir by os.Root, whatever they are, and
// dir below its parent, should it have become a link.
func unpack(ctx context.Context, file *os.File, dir string) error {
	parent, err := os.OpenRoot(filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer parent.Close()
	root, err := parent.OpenRoot(filepath.Base(dir))
	if err != nil {
		return err
	}
	defer root.Close()
	return eachEntry(ctx, file, func(header *tar.Header, content io.Reader) error {
		if header.Typeflag == tar.TypeDir {
			return root.MkdirAll(header.Name, 0o755)
		}
		if err := root.MkdirAll(filepath.Dir(header.Name), 0o755); err != nil {
			return err
		}
		return writeFile(root, header, content)
	})
}

// writeFile keeps of the mode whether the file is a program.
func writeFile(root *os.Root, header *tar.Header, content io.Reader) error {
	mode := fs.FileMode(0o644) | fs.FileMode(header.Mode)&0o111
	file, err := root.OpenFile(header.Name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}

// eachEntry reads the archive from its beginning.
func eachEntry(ctx context.Context, file *os.File, f func(*tar.Header, io.Reader) error) error {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	reader := tar.NewReader(file)
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s is no tar file: %w", file.Name(), err)
		}
		if err := f(header, reader); err != nil {
			return err
		}
	}
}
