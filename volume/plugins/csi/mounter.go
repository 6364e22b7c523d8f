package csi

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/csiclass"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/plugins/csi/internal/csivolume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/drivers"
)

// mounted is what mounter and unmounter have in common.
type mounted struct {
	volume.PodVolume
	plugin *Plugin
}

// GetPath returns the directory "mount" in the volume's own.
func (m *mounted) GetPath() string { return filepath.Join(m.PodVolume.GetPath(), mountDir) }

func (m *mounted) key(inline bool) knownKey {
	if inline {
		return knownKey{name: m.Name, pod: m.PodUID}
	}
	return knownKey{name: m.Name}
}

// mounter publishes a volume for a pod.
type mounter struct {
	mounted
	pod    *v1.Pod
	spec   *volume.Spec
	source *source

	mu      sync.Mutex
	refresh time.Time
}

// NewMounter implements [volume.VolumePlugin].
func (p *Plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	return p.Mounter(spec, pod, func(pv volume.PodVolume, _ *source) (volume.Mounter, error) {
		if err := pluginbase.CheckFilesystem(spec, "csi"); err != nil {
			return nil, err
		}
		s, err := csivolume.Checked(&p.Kind, spec)
		if err == nil {
			err = csiclass.CheckFSType("csi.fsType", s.FSType)
		}
		if err != nil {
			return nil, err
		}
		m := &mounter{mounted: mounted{pv, p}, pod: pod, spec: spec, source: s}
		if s.Inline {
			m.adopt()
		}
		p.known.put(m.source, m.key(s.Inline))
		return m, nil
	})
}

// adopt gives an inline volume the handle and the secret's namespace that it has in its
// pod.
func (m *mounter) adopt() {
	own := *m.source
	own.Handle = csivolume.InlineHandle(m.PodUID, m.Name)
	if own.Publish != nil {
		own.Publish = &v1.SecretReference{Namespace: m.pod.Namespace, Name: own.Publish.Name}
	}
	m.source = &own
}

// GetAttributes reports Managed unless the volume is read-only. SetUpAt knows whether the
// driver or its CSIDriver object has the files left alone.
func (m *mounter) GetAttributes() volume.Attributes {
	readOnly := (&volumeRequest{spec: m.spec, source: m.source}).readOnly()
	return volume.Attributes{ReadOnly: readOnly, Managed: !readOnly, SELinuxRelabel: true}
}

// RefreshAfter is the time of the next NodePublishVolume, if the CSIDriver requires it.
func (m *mounter) RefreshAfter() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refresh
}

// SetUp implements [volume.Mounter].
func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

// SetUpAt publishes the volume by NodePublishVolume. It calls the driver again for a
// volume that is mounted already only if the CSIDriver requires that, or if an earlier
// attempt left doubt. An error of a volume that was mounted before leaves it mounted.
func (m *mounter) SetUpAt(ctx context.Context, dir string, args volume.MounterArgs) error {
	return m.Error("SetUp", m.setUp(ctx, dir, args))
}

func (m *mounter) setUp(ctx context.Context, dir string, args volume.MounterArgs) error {
	w := &volumeRequest{spec: m.spec, source: m.source, group: args.FsGroup, label: args.SELinuxLabel}
	d, s, err := m.plugin.prepare(ctx, w)
	if err != nil {
		return err
	}
	dataDir := filepath.Dir(dir)
	before, err := csivolume.ReadData(dataDir)
	if err != nil {
		return volume.NothingDone(err)
	}
	there, err := m.plugin.disk.isMounted(dir)
	if err != nil {
		return volume.NothingDone(err)
	}
	owning := w.ownsFiles(s)
	complete := there && !m.plugin.known.isDoubtful(dir)
	if complete && before == nil { // it was lost
		before = m.data(w)
		if _, err := writeData(dataDir, before); err != nil {
			return doubtful(err)
		}
	}
	if complete && !w.driverSpec.republish && before.Owning == "" {
		return nil
	}
	if !complete || w.driverSpec.republish {
		data := m.data(w)
		if owning && (!complete || before.Owning != "") {
			data.Owning = "pending"
		}
		if err := m.publish(ctx, w, d, s, dir, data); err != nil {
			return err
		}
		owning = owning && data.Owning != ""
	}
	return m.own(ctx, w, dir, owning, args)
}

// publish has the driver publish the volume.
func (m *mounter) publish(ctx context.Context, w *volumeRequest, d *drivers.Driver, s *drivers.Session, dir string, data *volData) error {
	p, dataDir := m.plugin, filepath.Dir(dir)
	r, secret, next, err := m.request(ctx, w, s, dir)
	if err != nil {
		return err
	}
	fresh, err := writeData(dataDir, data)
	if err != nil {
		return volume.NothingDone(err)
	}
	doubted := p.known.doubt(dir, true)
	err = p.drivers.Do(ctx, drivers.Call{Driver: d, Method: "NodePublishVolume", Volume: r.VolumeId, Secret: secret, Migrated: w.spec.Migrated}, func(ctx context.Context, s *drivers.Session) error {
		_, err := s.Node.NodePublishVolume(ctx, r)
		return err
	})
	if err == nil {
		p.known.doubt(dir, false)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.refresh = next
		return nil
	}
	err = p.settle(err, fresh, dir, func() error { return p.disk.removePlace(dir, dataDir) })
	if !volume.IsUncertain(err) {
		p.known.doubt(dir, doubted && !fresh)
	}
	return err
}

func (m *mounter) data(w *volumeRequest) *volData {
	d := &volData{
		SpecVolID: m.Name, VolumeHandle: m.source.Handle, DriverName: m.source.Driver, NodeName: string(m.Host.GetNodeName()),
		Lifecycle: csivolume.Lifecycle(m.source.Inline),
	}
	if !m.source.Inline {
		d.AttachmentID = csivolume.AttachmentName(m.source, d.NodeName)
	}
	if w.driverSpec.seLinuxMount {
		d.SELinux = w.label
	}
	return d
}

// request is the call, the strings that errors must not hold, and the time of the next.
// A failure has done nothing.
func (m *mounter) request(ctx context.Context, w *volumeRequest, s *drivers.Session, dir string) (r *csi.NodePublishVolumeRequest, secret []string, next time.Time, err error) {
	p := m.plugin
	r = &csi.NodePublishVolumeRequest{VolumeId: m.source.Handle, TargetPath: dir, Readonly: w.readOnly(), VolumeContext: podContext(m.source, w.driverSpec, m.pod)}
	if !m.source.Inline && s.Has(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		r.StagingTargetPath = p.disk.GlobalMount(m.source)
	}
	if r.VolumeCapability, err = w.capability(s); err != nil {
		return nil, nil, next, err
	}
	if r.PublishContext, err = p.publishContext(ctx, w, p.disk.GlobalMount(m.source), false); err != nil {
		return nil, nil, next, err
	}
	secret, next, err = p.confide(ctx, w, m.pod, m.Name, r)
	return r, secret, next, err
}

// confide adds the secrets and tokens to a request, and says when it is to be repeated.
func (p *Plugin) confide(ctx context.Context, w *volumeRequest, pod *v1.Pod, volumeName string, r *csi.NodePublishVolumeRequest) (secret []string, next time.Time, err error) {
	if r.Secrets, err = csivolume.Secrets(ctx, p.Host, w.source.Publish, "NodePublishVolume"); err != nil {
		return nil, next, err
	}
	secret = csivolume.ValuesOf(r.Secrets)
	t, err := p.tokensFor(ctx, volumeName, w.driverSpec, pod)
	if err != nil {
		return nil, next, err
	}
	if w.driverSpec.republish {
		next = time.Now().Add(p.config.Republish)
	}
	if t == nil {
		return secret, next, nil
	}
	if w.driverSpec.republish && t.due.Before(next) {
		next = t.due
	}
	if w.driverSpec.tokensInSecrets {
		if r.Secrets == nil {
			r.Secrets = make(map[string]string)
		}
		r.Secrets[keyTokens] = t.text
	} else {
		if r.VolumeContext == nil {
			r.VolumeContext = make(map[string]string)
		}
		r.VolumeContext[keyTokens] = t.text
	}
	return slices.Concat(secret, t.values), next, nil
}

// doubtful takes the mark of NothingDone from an error after the volume was mounted.
func doubtful(err error) error {
	if err == nil || volume.IsUncertain(err) {
		return err
	}
	return errors.Join(errors.New("the volume is mounted"), err)
}

// own gives the files to the pod's fsGroup, where that is podvol's to do, and notes that
// it is done.
func (m *mounter) own(ctx context.Context, w *volumeRequest, dir string, owning bool, args volume.MounterArgs) error {
	if !owning {
		return nil
	}
	if err := m.plugin.owner.Set(ctx, dir, m.GetAttributes(), args); err != nil {
		return doubtful(err) // it is mounted
	}
	_, err := writeData(filepath.Dir(dir), m.data(w))
	return err
}

// unmounter unpublishes a volume of a pod.
type unmounter struct{ mounted }

// NewUnmounter implements [volume.VolumePlugin].
func (p *Plugin) NewUnmounter(volumeName string, podUID types.UID) (volume.Unmounter, error) {
	pv, err := volume.NewUnmountedPodVolume(p.Host, PluginName, volumeName, podUID)
	if err != nil {
		return nil, err
	}
	return &unmounter{mounted{pv, p}}, nil
}

// TearDown implements [volume.Unmounter].
func (u *unmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.GetPath()) }

// TearDownAt unpublishes the volume by NodeUnpublishVolume and removes its directories.
func (u *unmounter) TearDownAt(ctx context.Context, dir string) error {
	dataDir := filepath.Dir(dir)
	err := u.plugin.unpublish(ctx, dir, dataDir, u.key(false), u.key(true))
	if err != nil {
		return u.Error("TearDown", err)
	}
	u.plugin.known.doubt(dir, false)
	u.plugin.known.forget(u.key(true))
	u.plugin.known.tokens.put(issuedKey{u.PodUID, u.Name}, nil)
	u.plugin.meter.Forget(dir)
	return nil
}

// unpublish undoes a publishing at a place, whose data is in a directory.
func (p *Plugin) unpublish(ctx context.Context, place, dataDir string, keys ...knownKey) error {
	data, err := p.identifyLeft(place, place, dataDir, keys...)
	if err != nil {
		return err
	}
	if data == nil {
		return p.disk.removeUnidentified(place, dataDir)
	}
	if err := p.callUnpublish(ctx, data, place); err != nil {
		return err
	}
	return p.disk.removePlace(place, dataDir)
}

// callUnpublish calls the driver. A driver that does not know the volume any more has
// nothing to undo, if nothing is there.
func (p *Plugin) callUnpublish(ctx context.Context, data *volData, place string) error {
	d, err := p.drivers.Get(data.DriverName)
	if err != nil {
		return err
	}
	r := &csi.NodeUnpublishVolumeRequest{VolumeId: data.VolumeHandle, TargetPath: place}
	err = p.drivers.Do(ctx, drivers.Call{Driver: d, Method: "NodeUnpublishVolume", Volume: r.VolumeId}, func(ctx context.Context, s *drivers.Session) error {
		_, err := s.Node.NodeUnpublishVolume(ctx, r)
		return err
	})
	if status.Code(err) != codes.NotFound || err == nil {
		return err
	}
	if mounted, tableErr := p.disk.isMounted(place); mounted || tableErr != nil {
		return err
	}
	return nil
}

// ConstructVolumeSpec reads the volume's vol_data.json; without one, the mount table must
// show on which staged volume it is. Attributes, secrets, file system type and options
// are lost. The path is that of the volume or of its directory. Where nothing tells and
// nothing is mounted, the spec is an inline one of no driver: it suffices to remove the
// empty directories.
func (p *Plugin) ConstructVolumeSpec(_ context.Context, volumeName, volumePath string) (volume.ReconstructedVolume, error) {
	dir := volumePath
	if filepath.Base(volumePath) == mountDir {
		dir = filepath.Dir(volumePath)
	}
	data, err := identifyOrNothing(p, dir, knownKey{name: volumeName})
	if err != nil {
		return volume.ReconstructedVolume{}, err
	}
	return volume.ReconstructedVolume{Spec: data.Spec(volumeName, v1.PersistentVolumeFilesystem), SELinuxMountContext: data.SELinux}, nil
}

// identifyOrNothing is identify for a pod's volume. Without any trace, and with nothing
// mounted, it is an inline one of no driver. The volume may be set up meanwhile: its data
// is there before its mount.
func identifyOrNothing(p *Plugin, dir string, key knownKey) (*volData, error) {
	place := filepath.Join(dir, mountDir)
	for range 3 {
		data, err := p.identify(dir, place, key)
		if data != nil || err != nil {
			return data, err
		}
		mounted, err := p.disk.isMounted(place)
		if err != nil {
			return nil, err
		}
		if !mounted {
			return &volData{Lifecycle: csivolume.Lifecycle(true)}, nil
		}
	}
	return nil, unidentified(dir)
}

func unidentified(dir string) error {
	return &volume.Failure{Cause: ErrUnidentified, Subject: dir,
		What: "nothing says of which driver the volume at " + dir + " is: its " + csivolume.DataFile + " is missing or empty",
		Next: "unmount and remove it by hand if no pod uses it"}
}
