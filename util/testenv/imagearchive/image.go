package imagearchive

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
)

// Image is one image of one layer.
type Image struct {
	Names      []string // with their tags
	Entrypoint []string
	Cmd        []string
	Env        []string
	Files      []File
}

// File is a file, a directory or a link of an image. Parents that an image does not name
// are made by the runtime.
type File struct {
	Path string // below the root, without a slash before it
	Mode fs.FileMode
	// Source is a file of this machine whose content the file has, unless Content or
	// Link is set. A directory has none of them.
	Source  string
	Content []byte
	Link    string // the target of a symbolic link, or of a further name
	Hard    bool   // whether Link is a further name of a file of the image
}

// Write writes all images as one archive. It does not change what it is given. After an
// error the archive is unusable.
func Write(w io.Writer, images ...Image) error {
	archive := tar.NewWriter(w)
	var manifest []any
	for _, image := range images {
		entry, err := image.write(archive)
		if err != nil {
			return fmt.Errorf("image %v: %w", image.Names, err)
		}
		manifest = append(manifest, entry)
	}
	if err := addJSON(archive, "manifest.json", manifest); err != nil {
		return err
	}
	return archive.Close()
}

// write adds the image's layer and configuration, and returns its entry of the manifest.
func (i Image) write(archive *tar.Writer) (any, error) {
	sum := sha256.New()
	counted := &counter{to: sum}
	if err := i.layer(counted); err != nil { // a first time, since the size comes before the content
		return nil, err
	}
	id := hex.EncodeToString(sum.Sum(nil))
	layer := id + "/layer.tar"
	if err := archive.WriteHeader(&tar.Header{Name: layer, Mode: 0o644, Size: counted.written}); err != nil {
		return nil, err
	}
	if err := i.layer(archive); err != nil {
		return nil, err
	}
	type object = map[string]any
	config := object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Entrypoint": i.Entrypoint, "Cmd": i.Cmd, "Env": i.Env},
		"rootfs": object{"type": "layers", "diff_ids": []string{"sha256:" + id}},
	}
	content, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	configID := sha256.Sum256(content)
	name := hex.EncodeToString(configID[:]) + ".json"
	return object{"Config": name, "RepoTags": i.Names, "Layers": []string{layer}}, addFile(archive, name, content)
}

// layer writes the same bytes each time, as long as the sources are the same.
func (i Image) layer(w io.Writer) error {
	layer := tar.NewWriter(w)
	for _, file := range i.Files {
		if err := file.write(layer); err != nil {
			return err
		}
	}
	return layer.Close()
}

func (f File) write(layer *tar.Writer) error {
	header := &tar.Header{Name: f.Path, Mode: mode(f.Mode)}
	content := f.Content
	switch {
	case f.Link != "" && f.Hard:
		header.Typeflag, header.Linkname = tar.TypeLink, f.Link
	case f.Link != "":
		header.Typeflag, header.Linkname = tar.TypeSymlink, f.Link
	case f.Mode.IsDir():
		header.Typeflag, header.Name = tar.TypeDir, f.Path+"/"
	case f.Content == nil:
		var err error
		if content, err = os.ReadFile(f.Source); err != nil {
			return err
		}
	}
	header.Size = int64(len(content))
	if err := layer.WriteHeader(header); err != nil {
		return err
	}
	_, err := layer.Write(content)
	return err
}

// mode is a mode as tar has it: permissions, and the bits beside them.
func mode(m fs.FileMode) int64 {
	bits := int64(m.Perm())
	for bit, of := range map[int64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if m&of != 0 {
			bits |= bit
		}
	}
	return bits
}

func addJSON(archive *tar.Writer, name string, value any) error {
	content, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return addFile(archive, name, content)
}

func addFile(archive *tar.Writer, name string, content []byte) error {
	if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := archive.Write(content)
	return err
}

// counter counts what is written through it.
type counter struct {
	to      io.Writer
	written int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.written += int64(n)
	return n, err
}
