package persistentvolume_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/objectstest"
	"github.com/podvol/podvol/volume/persistentvolume/release"
)

const storagePlugin = "example.com/storage"

// storage is a plugin whose storage is one ConfigMap for each volume, below the
// namespace "storage": it is made and deleted through the process's own client,
// which fails and dies at these calls as at any other. Its volumes are NFS
// volumes of the server "storage".
type storage struct {
	volume.NoMetrics
	client *objectstest.Client
	host   volume.VolumeHost
	law    *law

	mu       sync.Mutex
	failing  error                                           // of whatever is asked for, unless nil
	nonsense func(*v1.PersistentVolume) *v1.PersistentVolume // made of what was provisioned, unless nil
	calls    int
	midway   func(ctx context.Context, do, pv string) error
}

var (
	_ volume.RecyclableVolumePlugin    = (*storage)(nil)
	_ volume.DeletableVolumePlugin     = (*storage)(nil)
	_ volume.ProvisionableVolumePlugin = (*storage)(nil)
)

func (s *storage) Init(host volume.VolumeHost) error { s.host = host; return nil }
func (s *storage) GetPluginName() string             { return storagePlugin }
func (s *storage) SupportsMountOption() bool         { return true }
func (s *storage) CanSupport(spec *volume.Spec) bool {
	return spec != nil && spec.PersistentVolume != nil && spec.PersistentVolume.Spec.NFS != nil
}

func (s *storage) GetVolumeName(spec *volume.Spec) (string, error) {
	return spec.PersistentVolume.Spec.NFS.Path, nil
}

func (s *storage) NewMounter(*volume.Spec, *v1.Pod) (volume.Mounter, error) {
	return nil, errors.ErrUnsupported
}

func (s *storage) NewUnmounter(string, types.UID) (volume.Unmounter, error) {
	return nil, errors.ErrUnsupported
}

func (s *storage) ConstructVolumeSpec(context.Context, string, string) (volume.ReconstructedVolume, error) {
	return volume.ReconstructedVolume{}, errors.ErrUnsupported
}

func (s *storage) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = err
}

func (s *storage) distort(f func(*v1.PersistentVolume) *v1.PersistentVolume) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nonsense = f
}

func (s *storage) distorted(pv *v1.PersistentVolume) *v1.PersistentVolume {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nonsense == nil {
		return pv
	}
	return s.nonsense(pv)
}

func (s *storage) called() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	return s.failing
}

// inTheMidst has f called in the midst of each Recycle, Delete and Provision: after
// it was allowed, and before it has had any effect.
func (s *storage) inTheMidst(f func(ctx context.Context, do, pv string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.midway = f
}

func (s *storage) halfway(ctx context.Context, do, pv string) error {
	s.mu.Lock()
	f := s.midway
	s.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(ctx, do, pv)
}

// asked returns how often it was to do something.
func (s *storage) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func storageRef(pv string) volume.ObjectRef { return volume.NewObjectRef("ConfigMap", "storage", pv) }

// verified asks whether data may be destroyed, and holds the answer against the
// law.
func (s *storage) verified(ctx context.Context, pv *v1.PersistentVolume) error {
	if err := s.called(); err != nil {
		return err
	}
	releases, err := volume.Role[volume.ReleaseVerifier](s.host)
	if err != nil {
		return err
	}
	if err := releases.VerifyReleased(ctx, pv); err != nil {
		return err
	}
	s.law.destroying(pv)
	return nil
}

func (s *storage) Recycle(ctx context.Context, _ string, spec *volume.Spec, record volume.RecycleEventRecorder) error {
	record(v1.EventTypeNormal, "emptying it")
	if err := s.verified(ctx, spec.PersistentVolume); err != nil {
		return err
	}
	if err := s.halfway(ctx, "Recycle", spec.PersistentVolume.Name); err != nil {
		return err
	}
	s.law.Emptied(spec.PersistentVolume)
	return nil
}

func (s *storage) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	return &deleter{storage: s, pv: spec.PersistentVolume}, nil
}

type deleter struct {
	*storage
	pv *v1.PersistentVolume
}

func (d *deleter) GetPath() string { return "" }

func (d *deleter) Delete(ctx context.Context) error {
	if err := d.verified(ctx, d.pv); err != nil {
		return err
	}
	if err := d.halfway(ctx, "Delete", d.pv.Name); err != nil {
		return err
	}
	err := d.client.Delete(ctx, storageRef(d.pv.Name), objects.Preconditions{})
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return err
}

func (s *storage) NewProvisioner(options volume.VolumeOptions) (volume.Provisioner, error) {
	if options.Parameters["bad"] != "" {
		return nil, volume.Invalid("parameters.bad", "is not known")
	}
	return &provisioner{storage: s, options: options}, nil
}

type provisioner struct {
	*storage
	options volume.VolumeOptions
}

func (p *provisioner) Provision(ctx context.Context, node *v1.Node, allowed []v1.TopologySelectorTerm) (*v1.PersistentVolume, error) {
	if err := p.called(); err != nil {
		return nil, err
	}
	name := p.options.PVName
	if err := p.halfway(ctx, "Provision", name); err != nil {
		return nil, err
	}
	_, err := p.client.Create(ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: name}})
	if err != nil && !errors.Is(err, objects.ErrExists) {
		return nil, err
	}
	pv := pvbuild.NewPV(name, "1Gi", pvbuild.WithModes(p.options.PVC.Spec.AccessModes...))
	pv.Spec.Capacity = p.options.PVC.Spec.Resources.Requests
	pv.Annotations = map[string]string{"example.com/parameter": p.options.Parameters["size"], "example.com/topologies": fmt.Sprint(len(allowed))}
	if class := p.options.VolumeAttributesClass; class != nil {
		pv.Annotations["example.com/attributes"] = class.Name + " " + class.Parameters["iops"]
	}
	if node != nil {
		pvbuild.OnHost(node.Name)(pv)
	}
	return p.distorted(pv), nil
}

// destroying checks that a volume's data may go.
func (l *law) destroying(pv *v1.PersistentVolume) {
	stored, err := objects.Get[*v1.PersistentVolume](context.Background(), l.store, volume.NewObjectRef("PersistentVolume", "", pv.Name))
	if err == nil && stored.Status.Phase != v1.VolumeReleased && stored.Status.Phase != v1.VolumeFailed {
		err = fmt.Errorf("the data of volume %s is destroyed in phase %q", pv.Name, stored.Status.Phase)
	}
	if errors.Is(err, volume.ErrNotFound) {
		err = nil // deleted since it was verified, and nobody can have it any more
	}
	claims, _ := objects.List[*v1.PersistentVolumeClaim](context.Background(), l.store, "PersistentVolumeClaim", "")
	for _, c := range claims {
		if err == nil && c.UID == pv.Spec.ClaimRef.UID && (c.Spec.VolumeName == "" || c.Spec.VolumeName == pv.Name) {
			err = fmt.Errorf("the data of volume %s is destroyed while its claim is there", pv.Name)
		}
	}
	l.report(err)
}

// withStorage gives the processes that are started the plugin.
func (w *world) withStorage() *world {
	w.plugins = func(client *objectstest.Client) *volume.VolumePluginMgr {
		w.storage = &storage{client: client, law: w.law, failing: w.failing}
		host := &volume.Host{}
		releases := &release.Verifier{Objects: client}
		host.Releases = releases
		plugins, err := volume.NewVolumePluginMgr([]volume.VolumePlugin{w.storage}, host)
		if err != nil {
			w.t.Fatal(err)
		}
		releases.Plugins = plugins
		return plugins
	}
	return w
}

// withPlugin gives the processes that are started a plugin around the storage.
func (w *world) withPlugin(around func(*storage) volume.VolumePlugin) *world {
	w.plugins = func(client *objectstest.Client) *volume.VolumePluginMgr {
		plugins, err := volume.NewVolumePluginMgr([]volume.VolumePlugin{around(&storage{client: client, law: w.law})}, &volume.Host{})
		if err != nil {
			w.t.Fatal(err)
		}
		return plugins
	}
	return w
}

// startFailing starts a process whose plugin fails from the first call on.
func (w *world) startFailing(err error) {
	w.failing = err
	w.start()
	w.failing = nil
}

// stored returns the names of the storage that exists.
func (w *world) stored() (names []string) {
	list, err := w.store.List(w.t.Context(), "ConfigMap", "storage")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, o := range list {
		names = append(names, o.GetName())
	}
	return names
}

func made(c *storagev1.StorageClass) { c.Provisioner = storagePlugin }

func withPolicy(policy v1.PersistentVolumeReclaimPolicy) pvbuild.Option {
	return func(pv *v1.PersistentVolume) { pv.Spec.PersistentVolumeReclaimPolicy = policy }
}

func boundByController(pv *v1.PersistentVolume) {
	metav1.SetMetaDataAnnotation(&pv.ObjectMeta, "pv.kubernetes.io/bound-by-controller", "yes")
}
