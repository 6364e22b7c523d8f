package volume_test

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

// basic is a plugin without any capability. What is not overridden panics by
// its nil embedded interface, as nothing here may call it.
type basic struct {
	volume.VolumePlugin
	name     string
	source   string // the type it supports, as manifests spell it
	initErr  error
	inits    []volume.VolumeHost
	nameErr  error
	dataName string
}

func (p *basic) Init(host volume.VolumeHost) error {
	p.inits = append(p.inits, host)
	return p.initErr
}
func (p *basic) GetPluginName() string { return p.name }
func (p *basic) CanSupport(spec *volume.Spec) bool {
	types := volume.SourceTypes(spec)
	return len(types) > 0 && types[0] == p.source
}
func (p *basic) GetVolumeName(*volume.Spec) (string, error) { return p.dataName, p.nameErr }

// capable has every capability.
type capable struct {
	basic
	can       bool
	canErr    error
	takesOpts bool
}

func (*capable) GetAccessModes() []v1.PersistentVolumeAccessMode { return nil }
func (p *capable) SupportsMountOption() bool                     { return p.takesOpts }
func (*capable) DependsOn(_ *volume.Spec, pod *v1.Pod) []volume.ObjectRef {
	return []volume.ObjectRef{volume.NewObjectRef("Secret", pod.Namespace, "s")}
}
func (*capable) DescribeSource(spec *volume.Spec) string { return "source of " + spec.Name() }
func (*capable) SupportsSELinuxContextMount(context.Context, *volume.Spec) (bool, error) {
	return true, nil
}
func (*capable) Recycle(context.Context, string, *volume.Spec, volume.RecycleEventRecorder) error {
	return nil
}
func (*capable) NewDeleter(*volume.Spec) (volume.Deleter, error) { return nil, nil }
func (*capable) NewProvisioner(volume.VolumeOptions) (volume.Provisioner, error) {
	return nil, nil
}
func (*capable) RequiresFSResize() bool { return true }
func (*capable) ExpandVolumeDevice(_ context.Context, _ *volume.Spec, size, _ resource.Quantity) (resource.Quantity, error) {
	return size, nil
}
func (*capable) NodeExpand(context.Context, volume.NodeResizeOptions) (bool, error) {
	return true, nil
}
func (*capable) NewDeviceMounter() (volume.DeviceMounter, error)         { return nil, nil }
func (*capable) NewDeviceUnmounter() (volume.DeviceUnmounter, error)     { return nil, nil }
func (*capable) GetDeviceMountRefs(string) ([]string, error)             { return nil, nil }
func (p *capable) CanDeviceMount(*volume.Spec) (bool, error)             { return p.can, p.canErr }
func (*capable) NewAttacher() (volume.Attacher, error)                   { return nil, nil }
func (*capable) NewDetacher() (volume.Detacher, error)                   { return nil, nil }
func (p *capable) CanAttach(context.Context, *volume.Spec) (bool, error) { return p.can, p.canErr }
func (*capable) NewBlockVolumeMapper(*volume.Spec, *v1.Pod) (volume.BlockVolumeMapper, error) {
	return nil, nil
}
func (*capable) NewBlockVolumeUnmapper(string, types.UID) (volume.BlockVolumeUnmapper, error) {
	return nil, nil
}
func (*capable) ConstructBlockVolumeSpec(context.Context, types.UID, string, string) (*volume.Spec, error) {
	return nil, nil
}

type plainMounter struct{ volume.Mounter }

type expiringMounter struct {
	volume.Mounter
	at time.Time
}

func (m expiringMounter) RefreshAfter() time.Time { return m.at }

func nfsSpec() *volume.Spec {
	return volume.NewSpecFromVolume(&v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{
		NFS: &v1.NFSVolumeSource{Server: "10.0.0.1", Path: "/export"},
	}})
}

func nfsPV() *v1.PersistentVolume {
	pv := &v1.PersistentVolume{}
	pv.Name = "nfs211"
	pv.Spec.NFS = &v1.NFSVolumeSource{Server: "10.20.172.211", Path: "/nfs"}
	return pv
}
