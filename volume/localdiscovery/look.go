package localdiscovery

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/volume/internal/localdisk"
)

// thing is something that was found.
type thing struct {
	Found
	class *Class
	ids   localdisk.Identity
	// fileSystem are the ids without the directory that is mounted, number the
	// device it is or that is mounted.
	fileSystem localdisk.Identity
	number     uint64
	isDevice   bool
	isLink     bool
	root       string // of a mount
	// slot is the device's place.
	slot string
	// other are names of disks with the same data: of the device that a file system
	// is on, or of the file system on a device.
	other localdisk.Identity
	// used has what keeps a device from being offered, as the kernel calls it.
	used []string
}

func (t *thing) refuse(why error, format string, args ...any) {
	t.State, t.Err = StateRefused, fmt.Errorf("%w: %s", why, fmt.Sprintf(format, args...))
}

func (t *thing) fail(err error) { t.State, t.Err = StateFailed, err }

// look finds the entries of all classes' directories. An unreadable directory is
// an error, a missing one empty.
func (d *Discoverer) look(ctx context.Context, classes []Class) (things []*thing, err error) {
	entries, err := d.Mounts.All()
	if err != nil {
		return nil, err
	}
	var errs []error
	for i := range classes {
		found, err := d.lookInto(ctx, classes[:i+1], entries)
		if err != nil {
			errs = append(errs, fmt.Errorf("look into %s: %w", classes[i].Dir, err))
		}
		things = append(things, found...)
	}
	d.probeAll(ctx, things)
	return things, errors.Join(errs...)
}

// directory is what the names in a class's directory are.
type directory struct {
	// paths are the directory's, as configured and without links.
	paths   []string
	entries []fs.DirEntry
	// mount is the id of the mount that it lies in.
	mount int
}

func (d *Discoverer) read(ctx context.Context, dir string) (directory, error) {
	found := make(chan directory, 1)
	err := d.bounded(ctx, "dir "+dir, func() error {
		in, err := readDirectory(d.Mounts, dir)
		found <- in
		return err
	})
	if err != nil {
		return directory{}, err
	}
	return <-found, nil
}

func readDirectory(t mount.Table, dir string) (directory, error) {
	in := directory{paths: []string{dir}}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return in, nil
	}
	if err != nil {
		return in, err
	}
	holding, err := table.Containing(t, dir)
	if err != nil {
		return in, err
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil && real != dir {
		in.paths = append(in.paths, real)
	}
	in.entries, in.mount = entries, holding.ID
	return in, nil
}

// lookInto finds the entries of the last class's directory that belong to no
// earlier class, without looking at them yet.
func (d *Discoverer) lookInto(ctx context.Context, classes []Class, entries []mount.Entry) (things []*thing, err error) {
	class := &classes[len(classes)-1]
	has := func(name string) bool {
		first := slices.IndexFunc(classes, func(c Class) bool { return c.Dir == class.Dir && c.has(name) })
		return first == len(classes)-1
	}
	dir, err := d.read(ctx, class.Dir)
	if err != nil {
		return nil, err
	}
	seen, hidden := topmost(entries, dir)
	mounted := make(map[string]bool)
	for i, e := range append(seen, hidden...) {
		name := filepath.Base(e.Target)
		mounted[name] = true
		if !has(name) {
			continue
		}
		t := &thing{class: class, number: e.Device, root: e.Root}
		t.Found = Found{Path: e.Target, Source: e.Source, FSType: e.FSType, Mode: v1.PersistentVolumeFilesystem, ReadOnly: e.ReadOnly()}
		t.StorageClass = class.StorageClass
		if i >= len(seen) {
			t.refuse(ErrHidden, "%s is mounted at %s below another mount; unmount that one, or mount it elsewhere", t.Source, t.Path)
		}
		things = append(things, t)
	}
	for _, e := range dir.entries {
		name := e.Name()
		if mounted[name] || !has(name) || strings.HasPrefix(name, ".") {
			continue
		}
		t := &thing{class: class, isDevice: true, isLink: e.Type()&fs.ModeSymlink != 0}
		t.Path, t.StorageClass, t.Mode = filepath.Join(class.Dir, name), class.StorageClass, v1.PersistentVolumeBlock
		if !t.isLink && e.Type() != fs.ModeDevice {
			t.refuse(ErrNoVolume, "nothing is mounted at %s; mount a disk there, or make a link to a device", t.Path)
		}
		things = append(things, t)
	}
	return things, nil
}

// has reports whether a name belongs to the class.
func (c *Class) has(name string) bool {
	if c.NamePattern == "" {
		return true
	}
	return slices.ContainsFunc(strings.Split(c.NamePattern, ","), func(pattern string) bool {
		ok, _ := path.Match(strings.TrimSpace(pattern), name) // checked before
		return ok
	})
}

// topmost returns the visible mount at each mount point directly in a directory,
// and the hidden ones, in order. A visible mount is mounted on the directory's
// mount, or on a visible one.
func topmost(entries []mount.Entry, dir directory) (seen, hidden []mount.Entry) {
	at := make(map[string]mount.Entry)
	for _, e := range entries { // oldest first
		if !slices.Contains(dir.paths, filepath.Dir(e.Target)) || slices.Contains(dir.paths, e.Target) || strings.HasSuffix(e.Root, "//deleted") {
			continue
		}
		below, stacked := at[e.Target]
		switch {
		case stacked && e.ParentID == below.ID:
			hidden = append(hidden, below)
			at[e.Target] = e
		case e.ParentID == dir.mount && !stacked:
			at[e.Target] = e
		default:
			hidden = append(hidden, e)
		}
	}
	for _, e := range at {
		seen = append(seen, e)
	}
	slices.SortFunc(seen, func(a, b mount.Entry) int { return strings.Compare(a.Target, b.Target) })
	return seen, hidden
}

const (
	// defaultPatience is the default of Discoverer.Patience.
	defaultPatience = 10 * time.Second
	// impatience is how long one is waited for that did not answer before.
	impatience = 50 * time.Millisecond
)

func (d *Discoverer) patience() time.Duration {
	if d.Patience > 0 {
		return d.Patience
	}
	return defaultPatience
}

// bounded runs what a disk may hang in. Of each key one call is under way; once
// one that was given up ends, there is another pass.
func (d *Discoverer) bounded(ctx context.Context, key string, call func() error) error {
	wait := d.patience()
	if d.passes.isStuck(key) {
		wait = impatience
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait, fmt.Errorf("there was no answer for %s: %w", wait, context.DeadlineExceeded))
	defer cancel()
	err := d.calls.Do(ctx, key, func() error {
		defer d.passes.answered(key)
		return call()
	})
	if _, given := isAbandoned(err); given {
		d.passes.stuckAt(key)
	}
	return err
}

// isAbandoned reports whether a call was given up that is still under way.
func isAbandoned(err error) (*blockingcall.AbandonedError, bool) {
	e, ok := errors.AsType[*blockingcall.AbandonedError](err)
	return e, ok && (e.Started || e.Earlier)
}

// probeAll looks at all things at the same time, so that one that does not answer
// holds up the others once.
func (d *Discoverer) probeAll(ctx context.Context, things []*thing) {
	done := make(chan struct{}, len(things))
	running := 0
	for _, t := range things {
		if t.State != "" {
			continue
		}
		running++
		go func() {
			defer func() { done <- struct{}{} }()
			d.probe(ctx, t)
		}()
	}
	for range running {
		<-done
	}
}

// probe finds out what a thing is.
func (d *Discoverer) probe(ctx context.Context, t *thing) {
	found := make(chan thing, 1)
	given := *t
	err := d.bounded(ctx, t.Path, func() error {
		answer := given
		err := d.identify(&answer)
		found <- answer
		return err
	})
	if err != nil {
		t.fail(err)
		return
	}
	*t = <-found
	if t.State != "" || t.isDevice {
		return
	}
	metrics, err := d.measure(ctx, t.Path)
	if err != nil {
		t.fail(err)
		return
	}
	t.Capacity = metrics
	if now, mounted, err := d.Mounts.At(t.Path); err != nil || !mounted || now.Device != t.number || now.Root != t.root {
		t.fail(fmt.Errorf("the mount at %s changed during the scan", t.Path))
	}
}

func (d *Discoverer) measure(ctx context.Context, path string) (resource.Quantity, error) {
	ctx, cancel := context.WithTimeout(ctx, d.patience())
	defer cancel()
	metrics, err := d.meter.FileSystem(ctx, path)
	if err != nil {
		return resource.Quantity{}, err
	}
	if metrics.Capacity == nil {
		return resource.Quantity{}, nil
	}
	return *metrics.Capacity, nil
}

// identify may block.
func (d *Discoverer) identify(t *thing) error {
	if t.isDevice {
		return d.identifyDevice(t)
	}
	fd, err := eintr.Get(func() (int, error) { return unix.Open(t.Path, unix.O_PATH|unix.O_CLOEXEC, 0) })
	if err != nil {
		return &fs.PathError{Op: "open", Path: t.Path, Err: err}
	}
	at := os.NewFile(uintptr(fd), t.Path)
	defer at.Close()
	info, err := at.Stat()
	switch {
	case err != nil:
		return err
	case info.Mode().Type() == fs.ModeDevice: // its node is bound here
		t.isDevice, t.Mode, t.FSType = true, v1.PersistentVolumeBlock, ""
		return d.identifyDevice(t)
	case !info.IsDir():
		t.refuse(ErrNoVolume, "a file is mounted at %s", t.Path)
		return nil
	}
	e, ids, err := localdisk.FileSystem(d.Mounts, at, d.System)
	if err != nil {
		return err
	}
	if e.Device != t.number || e.Root != t.root {
		return fmt.Errorf("the mount at %s changed during the scan", t.Path)
	}
	t.ids = ids
	for _, id := range ids {
		t.fileSystem = append(t.fileSystem, strings.TrimSuffix(id, withoutAll(e.Root)))
	}
	t.ID = ids.Best()
	t.other = d.namesUnder(e)
	return nil
}

// namesUnder are the names of a file system's device.
func (d *Discoverer) namesUnder(e mount.Entry) localdisk.Identity {
	device, err := d.System.Open(e.Source, unix.O_RDONLY)
	if err != nil {
		return nil
	}
	defer device.Close()
	if device.Number() != e.Device && e.FSType != "btrfs" { // which has numbers of its own
		return nil
	}
	return localdisk.DeviceIdentity(device)
}

// withoutAll is what a name ends with for the directory that is mounted.
func withoutAll(root string) string {
	if root == "/" {
		return ""
	}
	return root
}

func (d *Discoverer) identifyDevice(t *thing) error {
	device, err := d.System.Open(t.Path, unix.O_RDONLY)
	switch {
	case errors.Is(err, unix.ENOTBLK):
		t.refuse(ErrNoVolume, "the link leads to something else")
		return nil
	case errors.Is(err, fs.ErrNotExist):
		t.refuse(ErrNoVolume, "the link leads to nothing; its device is away, or has another name")
		return nil
	case errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENOMEDIUM):
		t.refuse(ErrEmpty, "there is no medium in the drive")
		return nil
	case err != nil:
		return err
	}
	defer device.Close()
	size, err := device.Size()
	if err != nil {
		return err
	}
	if t.ReadOnly, err = device.ReadOnly(); err != nil {
		return err
	}
	t.Capacity = *resource.NewQuantity(size, resource.BinarySI)
	t.number, t.Source = device.Number(), "/dev/"+device.KernelName()
	t.ids, t.slot = device.Names(), device.Slot()
	t.fileSystem, t.ID = t.ids, t.ids.Best()
	holders, err := device.Holders()
	partitions, perr := device.Partitions()
	if err := errors.Join(err, perr); err != nil {
		return err
	}
	for _, name := range slices.Concat(holders, partitions) {
		t.used = append(t.used, "/dev/"+name)
	}
	if t.class.VolumeMode == v1.PersistentVolumeFilesystem {
		t.Mode, t.FSType = v1.PersistentVolumeFilesystem, t.class.FSType
	}
	return nil
}
