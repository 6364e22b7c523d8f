// Package localdiscovery offers a node's local disks as PersistentVolumes: every
// file system that is mounted directly below a directory, such as /mnt/disks,
// becomes a volume of its own, pinned to the node.
//
// It only offers. A volume that was released keeps its data, and the volume of
// a disk that is mounted no more stays, as its data may come back; an
// administrator deletes it. A PersistentVolume that is deleted while its disk is
// mounted is offered anew.
package localdiscovery

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// Objects is what a [Discoverer] needs of an object store.
type Objects interface {
	objects.Source
	objects.Lister
	objects.Writer
}

// Discoverer offers the mount points directly below a directory. Its fields must
// not be changed once it is used, nor may it be copied; all methods are safe for
// concurrent use.
type Discoverer struct {
	Objects Objects
	// Mounts is the node's mount table ([mount.TableOf]).
	Mounts mount.Table
	// NodeName is the node. The volumes are pinned to HostLabel, the node's label
	// kubernetes.io/hostname; empty means NodeName.
	NodeName, HostLabel string
	// Dir is the absolute directory, without links in it. StorageClass is the
	// class of its volumes, one that waits for its first consumer.
	Dir, StorageClass string
	// Logger takes what cannot be offered; nil drops it.
	Logger *slog.Logger

	meter volume.Meter
}

// Run offers what is mounted, and what is mounted later as soon as that is, until
// ctx ends and it returns nil. It does nothing while neither the mounts nor the
// volumes change. The error says that the mount table can no longer be watched.
func (d *Discoverer) Run(ctx context.Context) error {
	changed := d.Mounts.Subscribe(ctx)
	gone := make(chan struct{}, 1)
	defer d.Objects.WatchKind("PersistentVolume", func(volume.ObjectRef) {
		select {
		case gone <- struct{}{}:
		default:
		}
	})()
	for {
		if _, err := d.Discover(ctx); err != nil && ctx.Err() == nil {
			d.log().Warn("cannot offer every local volume", "dir", d.Dir, "error", err)
		}
		select {
		case _, ok := <-changed:
			if !ok && ctx.Err() == nil {
				return fmt.Errorf("local volumes below %s: the mount table can no longer be watched", d.Dir)
			}
		case <-gone:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

func (d *Discoverer) log() *slog.Logger {
	if d.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return d.Logger
}

// Discover offers what is mounted now, and returns the names of all its volumes,
// with those that were offered before. The error joins what could not be
// offered; the rest was.
func (d *Discoverer) Discover(ctx context.Context) (names []string, err error) {
	if err := volume.CheckAbsolutePath("Dir", d.Dir); err != nil {
		return nil, err
	}
	entries, err := d.Mounts.All()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range topmost(entries, filepath.Clean(d.Dir)) {
		name := d.nameOf(e.Target)
		if err := d.offer(ctx, name, e); err != nil {
			errs = append(errs, fmt.Errorf("offer %s as PersistentVolume %q: %w", e.Target, name, err))
			continue
		}
		names = append(names, name)
	}
	return names, errors.Join(errs...)
}

// topmost returns the mount that is seen at each mount point directly below dir,
// in order.
func topmost(entries []mount.Entry, dir string) (seen []mount.Entry) {
	at := make(map[string]mount.Entry)
	for _, e := range entries { // oldest first
		if filepath.Dir(e.Target) == dir && e.Target != dir && !strings.HasSuffix(e.Root, "//deleted") {
			at[e.Target] = e
		}
	}
	for _, e := range at {
		seen = append(seen, e)
	}
	slices.SortFunc(seen, func(a, b mount.Entry) int { return strings.Compare(a.Target, b.Target) })
	return seen
}

// nameOf is the same for a node's mount point each time.
func (d *Discoverer) nameOf(target string) string {
	return fmt.Sprintf("local-pv-%x", sha256.Sum256([]byte(d.NodeName+"\x00"+target)))[:len("local-pv-")+16]
}

// offer stores the volume of a mount point, unless it is stored already.
func (d *Discoverer) offer(ctx context.Context, name string, e mount.Entry) error {
	_, err := d.Objects.Get(ctx, volume.NewObjectRef("PersistentVolume", "", name))
	if !errors.Is(err, volume.ErrNotFound) {
		return err
	}
	metrics, err := d.meter.FileSystem(ctx, e.Target)
	if err != nil {
		return err
	}
	if metrics.Capacity == nil || metrics.Capacity.Sign() <= 0 {
		return volume.Invalid("capacity", "the file system has no size")
	}
	_, err = d.Objects.Create(ctx, d.volumeOf(name, e, *metrics.Capacity))
	if errors.Is(err, objects.ErrExists) {
		return nil
	}
	return err
}

func (d *Discoverer) volumeOf(name string, e mount.Entry, capacity resource.Quantity) *v1.PersistentVolume {
	host := d.HostLabel
	if host == "" {
		host = d.NodeName
	}
	pv := &v1.PersistentVolume{}
	pv.Name = name
	pv.Spec = v1.PersistentVolumeSpec{
		Capacity:                      v1.ResourceList{v1.ResourceStorage: capacity},
		AccessModes:                   []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		VolumeMode:                    new(v1.PersistentVolumeFilesystem),
		StorageClassName:              d.StorageClass,
		PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRetain,
		NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{host}}},
		}}}},
	}
	if e.ReadOnly() {
		pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}
	}
	pv.Spec.Local = &v1.LocalVolumeSource{Path: e.Target}
	return pv
}
