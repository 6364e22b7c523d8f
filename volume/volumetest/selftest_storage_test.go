package volumetest

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// diskStore is what disk does to storage: a volume is a directory of a pool,
// which is mounted for each deed. The fields are what broken disks do otherwise.
type diskStore struct {
	note  *note
	locks *keylock.Map[string]

	// within mounts a directory for a deed and calls f with where it is.
	within    func(ctx context.Context, deed, dir string, f func(root string) error) error
	verify    func(context.Context, *v1.PersistentVolume) error // before it recycles
	mayDelete func(context.Context, *v1.PersistentVolume) error
	keepsFile func(name string) bool
	knows     func(parameter string) bool
	nameOf    func(volume.VolumeOptions) string
	make      func(path string) (string, error)
	size      func(resource.Quantity) resource.Quantity
	remove    func(path string) error
	removeAny func(path string) error // of what the disk has not made
}

const diskPrefix = "disk-"

func newDiskStore(n *note) diskStore {
	s := diskStore{note: n, locks: &keylock.Map[string]{}}
	s.within = s.mounted
	s.verify = func(ctx context.Context, pv *v1.PersistentVolume) error {
		verifier, err := volume.Role[volume.ReleaseVerifier](n.host)
		if err != nil {
			return err
		}
		return verifier.VerifyReleased(ctx, pv)
	}
	s.mayDelete = s.verify
	s.keepsFile = func(string) bool { return false }
	s.knows = func(parameter string) bool { return parameter == "pool" }
	s.nameOf = func(o volume.VolumeOptions) string { return diskPrefix + string(o.PVC.UID) }
	s.make = func(path string) (string, error) { return path, os.MkdirAll(path, 0o755) }
	s.size = func(q resource.Quantity) resource.Quantity { return q }
	s.remove = os.RemoveAll
	s.removeAny = func(path string) error { return fmt.Errorf("%s was made by somebody else", path) }
	return s
}

func (s *diskStore) mounted(ctx context.Context, _, dir string, f func(root string) error) error {
	target := filepath.Join(s.note.host.GetPluginDir(noteName), "work", hex.EncodeToString([]byte(dir)))
	unlock, err := s.locks.Lock(ctx, target)
	if err != nil {
		return err
	}
	defer unlock()
	m := s.note.host.GetMounter()
	request := mount.Request{Source: dir, Target: target, Options: []string{"bind"}}
	if _, err := podmount.SetUp(ctx, m, request, func(mount.Entry) bool { return true }); err != nil {
		return err
	}
	return errors.Join(f(target), podmount.TearDown(ctx, m, target, mount.UnmountOptions{}))
}

func (s *diskStore) Recycle(ctx context.Context, _ string, spec *volume.Spec, _ volume.RecycleEventRecorder) error {
	if err := s.verify(ctx, spec.PersistentVolume); err != nil {
		return err
	}
	_, options, _ := flexOf(spec)
	return s.within(ctx, "Recycle", options["path"], func(root string) error {
		entries, err := os.ReadDir(root)
		for _, e := range entries {
			if !s.keepsFile(e.Name()) {
				err = errors.Join(err, os.RemoveAll(filepath.Join(root, e.Name())))
			}
		}
		return err
	})
}

func (s *diskStore) NewProvisioner(options volume.VolumeOptions) (volume.Provisioner, error) {
	for parameter := range options.Parameters {
		if !s.knows(parameter) {
			return nil, volume.Invalid("parameters."+parameter, "is not known")
		}
	}
	return diskProvisioner{s, options}, nil
}

type diskProvisioner struct {
	*diskStore
	options volume.VolumeOptions
}

func (p diskProvisioner) Provision(ctx context.Context, _ *v1.Node, _ []v1.TopologySelectorTerm) (*v1.PersistentVolume, error) {
	claim, pool, name := p.options.PVC.Spec, p.options.Parameters["pool"], p.nameOf(p.options)
	err := p.within(ctx, "Provision", pool, func(root string) error {
		path, err := p.make(filepath.Join(root, name))
		name = filepath.Base(path)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: p.options.PVName}, Spec: v1.PersistentVolumeSpec{
		Capacity:    v1.ResourceList{v1.ResourceStorage: p.size(claim.Resources.Requests[v1.ResourceStorage])},
		AccessModes: slices.Clone(claim.AccessModes),
		PersistentVolumeSource: v1.PersistentVolumeSource{FlexVolume: &v1.FlexPersistentVolumeSource{
			Driver: noteName, Options: map[string]string{"path": filepath.Join(pool, name)}}},
	}}, nil
}

func (s *diskStore) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	_, options, _ := flexOf(spec)
	return diskDeleter{diskStore: s, path: options["path"], pv: spec.PersistentVolume}, nil
}

type diskDeleter struct {
	volume.NoMetrics
	*diskStore
	path string
	pv   *v1.PersistentVolume
}

func (d diskDeleter) GetPath() string { return d.path }

func (d diskDeleter) Delete(ctx context.Context) error {
	if err := d.mayDelete(ctx, d.pv); err != nil {
		return err
	}
	dir, name := filepath.Split(d.path)
	if !strings.HasPrefix(name, diskPrefix) {
		return d.removeAny(d.path)
	}
	return d.within(ctx, "Delete", filepath.Clean(dir), func(root string) error { return d.remove(filepath.Join(root, name)) })
}

// brokenDeeds has each defect that a sweep is there for in one deed alone.
func brokenDeeds(deed, group string) []broken {
	alter := func(f func(d *disk, ctx context.Context, dir string, do func(context.Context) error) error) func() volume.VolumePlugin {
		return alteredDisk(func(d *disk) {
			within := d.within
			d.within = func(ctx context.Context, what, dir string, do func(string) error) error {
				if what != deed {
					return within(ctx, what, dir, do)
				}
				return f(d, ctx, dir, func(ctx context.Context) error { return within(ctx, what, dir, do) })
			}
		})
	}
	var all []broken
	add := func(defect, breaks string, plugin func() volume.VolumePlugin, also ...string) {
		all = append(all, broken{defect: deed + ": " + defect, breaks: group + "/" + breaks, also: also, plugin: plugin})
	}
	gaveUp := memoryOf()
	add("it gives up after a failure", "faults", alter(func(d *disk, ctx context.Context, dir string, do func(context.Context) error) error {
		failed := gaveUp(d)
		if failed.has(dir) {
			return errors.New("failed before")
		}
		err := do(ctx)
		if err != nil {
			failed.add(dir)
		}
		return err
	}), group+"/cancel")
	began := memoryOf()
	add("it takes a mount that another process left for somebody's", "crash", alter(func(d *disk, ctx context.Context, dir string, do func(context.Context) error) error {
		target := filepath.Join(d.host.GetPluginDir(noteName), "work", hex.EncodeToString([]byte(dir)))
		mine := began(d)
		if !mine.has(dir) && mountedAt(&noteVolume{PodVolume: volume.PodVolume{Host: d.host}}, target) {
			return errors.New("somebody has mounted something")
		}
		mine.add(dir)
		return do(ctx)
	}))
	add("it does not look at the context", "cancel", alter(func(_ *disk, ctx context.Context, _ string, do func(context.Context) error) error {
		return do(context.WithoutCancel(ctx))
	}))
	return all
}

// memoryOf returns what each disk remembers for itself.
func memoryOf() func(*disk) *memory {
	var all sync.Map
	return func(d *disk) *memory {
		m, _ := all.LoadOrStore(d, &memory{})
		return m.(*memory)
	}
}

// provisionAlone refuses every call that is not alone for a while.
func provisionAlone(d *disk) {
	var came, inside atomic.Int64
	within := d.within
	d.within = func(ctx context.Context, deed, dir string, f func(string) error) error {
		if deed == "Provision" {
			mine, alone := came.Add(1), inside.Add(1) == 1
			for range 50 { // each as late as the others' beginning on a busy machine
				time.Sleep(time.Millisecond)
			}
			inside.Add(-1)
			if !alone || came.Load() != mine {
				return errors.New("somebody else is at it")
			}
		}
		return within(ctx, deed, dir, f)
	}
}

func brokenStorage() []broken {
	all := []broken{
		{
			defect: "it leaves hidden files", breaks: "recycle/empties", also: []string{"recycle/faults", "recycle/crash", "recycle/cancel"},
			plugin: alteredDisk(func(d *disk) {
				d.keepsFile = func(name string) bool { return strings.HasPrefix(name, ".") }
			}),
		},
		{
			defect: "it recycles without asking", breaks: "recycle/released",
			plugin: alteredDisk(func(d *disk) { d.verify = func(context.Context, *v1.PersistentVolume) error { return nil } }),
		},
		{
			defect: "it deletes without asking", breaks: "delete/released",
			plugin: alteredDisk(func(d *disk) { d.mayDelete = func(context.Context, *v1.PersistentVolume) error { return nil } }),
		},
		{
			defect: "it makes less than was asked for", breaks: "provision/made",
			plugin: alteredDisk(func(d *disk) {
				d.size = func(resource.Quantity) resource.Quantity { return resource.MustParse("1Mi") }
			}),
		},
		{
			defect: "it takes any parameter", breaks: "provision/refused",
			plugin: alteredDisk(func(d *disk) { d.knows = func(string) bool { return true } }),
		},
		{
			defect: "it makes storage anew that it does not remember", breaks: "provision/same-claim",
			also: []string{"provision/made", "provision/crash"},
			plugin: alteredDisk(func(d *disk) {
				var mine memory
				d.make = func(path string) (string, error) {
					for {
						err := os.Mkdir(path, 0o755)
						if err == nil || mine.has(path) {
							mine.add(path)
							return path, nil
						}
						if !errors.Is(err, fs.ErrExist) {
							return path, err
						}
						path += "x"
					}
				}
			}),
		},
		{
			defect: "it makes nothing where several want some at once", breaks: "provision/same-claim",
			also: []string{"provision/several-claims"}, plugin: alteredDisk(provisionAlone),
		},
		{
			defect: "it calls storage by the beginning of the claim's name", breaks: "provision/several-claims",
			plugin: alteredDisk(func(d *disk) {
				d.nameOf = func(o volume.VolumeOptions) string { return diskPrefix + o.PVC.Name[:5] }
			}),
		},
		{
			defect: "it deletes storage of one name just once", breaks: "delete/provisioned",
			plugin: alteredDisk(func(d *disk) {
				var gone memory
				d.remove = func(path string) error {
					if gone.has(path) {
						return nil
					}
					gone.add(path)
					return os.RemoveAll(path)
				}
			}),
		},
		{
			defect: "it looks whose storage it was after deleting it", breaks: "delete/given",
			plugin: alteredDisk(func(d *disk) {
				d.removeAny = func(path string) error { return errors.Join(os.RemoveAll(path), errors.New("it was not mine")) }
			}),
		},
	}
	return slices.Concat(all, brokenDeeds("Recycle", "recycle"), brokenDeeds("Provision", "provision"), brokenDeeds("Delete", "delete"))
}
