package csitest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/removetree"
)

const (
	defaultBytes = 64 << 20
	// maxBytes is the capacity of the storage.
	maxBytes = 1 << 40
)

// stored is a volume as its file "volume.json" has it.
type stored struct {
	ID    string `json:"id"`
	Name  string `json:"name"` // as CreateVolume got it; empty: made otherwise
	Bytes int64  `json:"bytes"`
	Disk  Disk   `json:"disk"`
	// From is the volume that this one was a copy of; empty: it began empty.
	From string `json:"from,omitempty"`
	// Mutable are the parameters that ControllerModifyVolume changes.
	Mutable map[string]string `json:"mutable,omitempty"`
	// Inline volumes go with their pod.
	Inline bool `json:"inline,omitempty"`
	dir    string
}

func (v *stored) data() string  { return filepath.Join(v.dir, "data") }
func (v *stored) image() string { return filepath.Join(v.dir, "image") }

func (v *stored) content() string {
	if v.Disk == Directory {
		return v.data()
	}
	return v.image()
}

// dirOf is the volume's directory: ids are the callers' and may be anything.
func (c *Config) dirOf(id string) string {
	sum := sha256.Sum256([]byte(id))
	return filepath.Join(c.Dir, hex.EncodeToString(sum[:12]))
}

// idOf is the id of a volume that CreateVolume makes: the same for each call.
func idOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "vol-" + hex.EncodeToString(sum[:8])
}

// find returns a volume; nil: there is none.
func (c *Config) find(id string) (*stored, error) {
	dir := c.dirOf(id)
	data, err := os.ReadFile(filepath.Join(dir, "volume.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	v := &stored{dir: dir}
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return v, nil
}

// need is find for a call that needs the volume. With CreateOnUse it makes one.
func (c *Config) need(id string, context map[string]string) (*stored, error) {
	if id == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is empty")
	}
	v, err := c.find(id)
	switch {
	case err != nil || v != nil:
		return v, err
	case context["csi.storage.k8s.io/ephemeral"] == "true":
		return c.create(&stored{ID: id, Inline: true}, context)
	case c.CreateOnUse:
		return c.create(&stored{ID: id}, context)
	}
	return nil, status.Errorf(codes.NotFound, "there is no volume %q", id)
}

// create makes a volume. Its file comes last.
func (c *Config) create(v *stored, parameters map[string]string) (*stored, error) {
	v.dir, v.Bytes = c.dirOf(v.ID), cmp.Or(v.Bytes, defaultBytes)
	v.Disk = cmp.Or(Disk(parameters["disk"]), v.Disk, c.Disk)
	if v.Disk != Directory && v.Disk != Loop && v.Disk != File {
		return nil, status.Errorf(codes.InvalidArgument, "disk %q is none of %s, %s, %s", v.Disk, Directory, Loop, File)
	}
	err := os.MkdirAll(v.dir, 0o750)
	if err == nil && v.From != "" {
		err = c.copyTo(v)
	}
	if err == nil && v.Disk == Directory {
		err = os.MkdirAll(v.data(), 0o755)
	} else if err == nil {
		err = setSize(v.image(), v.Bytes)
	}
	if err == nil {
		err = c.save(v)
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return v, nil
}

// copyTo copies what the volume begins with, in place of what an earlier try has left.
func (c *Config) copyTo(v *stored) error {
	from := &stored{dir: c.dirOf(v.From)}
	if v.Disk == Directory {
		if err := removetree.Remove(context.Background(), v.dir, "data"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return os.CopyFS(v.data(), os.DirFS(from.data()))
	}
	source, err := os.Open(from.image())
	if err != nil {
		return err
	}
	defer source.Close()
	copied, err := os.Create(v.image())
	if err != nil {
		return err
	}
	_, err = io.Copy(copied, source)
	return errors.Join(err, copied.Close())
}

func (c *Config) save(v *stored) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(v.dir, "volume.json"), data, 0o600)
}

// device is what a block volume is published as.
func (v *stored) device() (string, error) {
	if v.Disk == File {
		return v.image(), nil
	}
	return attach(v.image())
}

// setSize makes a sparse file at least this large.
func setSize(path string, bytes int64) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err == nil && info.Size() < bytes {
		err = file.Truncate(bytes)
	}
	return err
}

// remove deletes a volume and what is in it, but nothing that is mounted there. Its name
// goes first, so that what is left by a failure is no volume.
func (c *Config) remove(ctx context.Context, v *stored) error {
	err := durable.Remove(filepath.Join(v.dir, "volume.json"))
	if err == nil {
		err = removetree.Remove(ctx, c.Dir, filepath.Base(v.dir))
	}
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// list returns all volumes, in a stable order.
func (c *Config) list() (all []*stored, err error) {
	entries, err := os.ReadDir(c.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(c.Dir, e.Name(), "volume.json"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		v := &stored{dir: filepath.Join(c.Dir, e.Name())}
		if err == nil {
			err = json.Unmarshal(data, v)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// AddVolume makes a volume as an administrator does, with this id and size, and returns
// the directory or the image file with its data. Zero bytes is a default size. disk is
// the kind of the volume; empty: the configuration's.
func (d *Driver) AddVolume(id string, bytes int64, disk Disk) (data string, err error) {
	c := d.Config()
	v, err := c.create(&stored{ID: id, Bytes: bytes}, map[string]string{"disk": string(disk)})
	if err != nil {
		return "", err
	}
	return v.content(), nil
}

// Data returns the directory or the image file with a volume's data.
func (d *Driver) Data(id string) (string, error) {
	c := d.Config()
	v, err := c.find(id)
	if err == nil && v == nil {
		err = status.Errorf(codes.NotFound, "there is no volume %q", id)
	}
	if err != nil {
		return "", err
	}
	return v.content(), nil
}

// Volumes returns the ids of all volumes.
func (d *Driver) Volumes() (ids []string, err error) {
	c := d.Config()
	all, err := c.list()
	for _, v := range all {
		ids = append(ids, v.ID)
	}
	return ids, err
}
