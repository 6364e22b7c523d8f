package rbd_test

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/rbd"
	"github.com/podvol/podvol/volume/plugins/rbd/internal/krbd"
)

// key is a key as a cluster makes it, but of known bytes; otherKey is another one.
const (
	key      = "AQABAgMEBQYHCBAAAAECAwQFBgcICQoLDA0ODw=="
	otherKey = "AQABAgMEBQYHCBAAAAECAwQFBgcICQoLDA0OEA=="
)

// cluster is a fake one, and the kernels that have its images mapped. Each image is a directory
// of the test, by its name.
type cluster struct {
	mu       sync.Mutex
	dirs     map[string]string // by image
	mappings map[string]krbd.Device
	requests []krbd.Request
	refuse   error
	unseen   error // is the next Find's
	size     int64
	added    func(context.Context) error // is called once an image is mapped; its error is Map's
	isOpen   func(path string) bool
	next     int
}

func newCluster() *cluster {
	return &cluster{dirs: map[string]string{}, mappings: map[string]krbd.Device{}, size: 1 << 40, isOpen: func(string) bool { return false }}
}

// nameOf names the image that is a directory. A name has no slash.
func (c *cluster) nameOf(dir string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, of := range c.dirs {
		if of == dir {
			return name
		}
	}
	name := "image" + strconv.Itoa(len(c.dirs))
	c.dirs[name] = dir
	return name
}

func (c *cluster) Map(ctx context.Context, r krbd.Request) (krbd.Device, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return krbd.Device{}, volume.NothingDone(err)
	}
	c.requests = append(c.requests, r)
	if d, mapped := c.mappings[r.Token]; mapped {
		return d, nil
	}
	dir, known := c.dirs[r.Image]
	switch {
	case c.refuse != nil:
		return krbd.Device{}, c.refuse
	case !known:
		return krbd.Device{}, volume.NothingDone(&volume.Failure{Cause: krbd.ErrNoImage, What: "there is no image " + r.Image})
	}
	c.next++
	c.mappings[r.Token] = krbd.Device{ID: strconv.Itoa(c.next), Path: dir, Size: c.size, ReadOnly: r.ReadOnly}
	if c.added != nil {
		if err := c.added(ctx); err != nil {
			return krbd.Device{}, err
		}
	}
	return c.mappings[r.Token], nil
}

func (c *cluster) Find(token string) (krbd.Device, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.unseen; err != nil {
		c.unseen = nil
		return krbd.Device{}, false, err
	}
	d, ok := c.mappings[token]
	if ok {
		d.Size = c.size
	}
	return d, ok, nil
}

func (c *cluster) Unmap(ctx context.Context, token string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if d, ok := c.mappings[token]; ok && c.isOpen(d.Path) {
		return &volume.Failure{Cause: volume.ErrInUse, What: "the disk is mounted"}
	}
	delete(c.mappings, token)
	return nil
}

func (c *cluster) mapped() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.mappings)
}

// binder mounts disks that are directories.
type binder struct {
	mounter mount.Interface
	fail    error
	resized []string
}

func (b *binder) FormatAndMount(ctx context.Context, r format.Request) (format.Result, error) {
	if b.fail != nil {
		return format.Result{}, b.fail
	}
	r.Request.FSType, r.Request.Options = "", append([]string{"bind"}, r.Request.Options...)
	return format.Result{}, mount.Mount(ctx, b.mounter, r.Request)
}

func (b *binder) Resize(_ context.Context, device, _ string) (bool, error) {
	b.resized = append(b.resized, device)
	return true, nil
}

// hosted is the plugin with a formatter that mounts by its host's mounter.
type hosted struct {
	*rbd.Plugin
	cluster *cluster
	binder  *binder
}

func newHosted(c *cluster, config rbd.Config) *hosted {
	b := &binder{}
	return &hosted{rbd.NewWith(config, c, b), c, b}
}

func (h *hosted) Init(host volume.VolumeHost) error {
	h.binder.mounter = host.GetMounter()
	h.cluster.isOpen = func(path string) bool {
		all, err := table.Of(host.GetMounter()).All()
		return err != nil || slices.ContainsFunc(all, func(e mount.Entry) bool {
			return e.Root != "/" && strings.HasSuffix(path, e.Root) && strings.HasPrefix(e.Target, filepath.Join(host.GetPluginDir(rbd.PluginName), "mounts"))
		})
	}
	return h.Plugin.Init(host)
}
