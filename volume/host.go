package volume

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	mountutils "k8s.io/mount-utils"

	"github.com/podvol/podvol/volume/layout"
)

// VolumeHost is the part of the node that every plugin needs. Its methods do no
// I/O and are safe for concurrent use. The directories are the kubelet's. So
// podvol can take a node over from the kubelet, and the kubelet from podvol.
type VolumeHost interface {
	// GetPodVolumeDir returns <root>/pods/<uid>/volumes/<plugin~>/<volume>.
	GetPodVolumeDir(podUID types.UID, plugin, volume string) string
	// GetPodPluginDir returns <root>/pods/<uid>/plugins/<plugin~>.
	GetPodPluginDir(podUID types.UID, plugin string) string
	// GetPluginDir returns <root>/plugins/<plugin>. The name keeps its slash.
	GetPluginDir(plugin string) string
	// GetMounter returns the node's mounter. Its type is mount.Interface of this
	// module, too, which is only another name: this package imports nothing of
	// Linux.
	GetMounter() mountutils.Interface
	// GetNodeName returns the node's name.
	GetNodeName() types.NodeName
}

// Host is the VolumeHost made of plain values. Each of its fields below Mounter
// is a role; nil: the host does not have it.
type Host struct {
	// RootDir is the absolute directory of all files of the host.
	RootDir  string
	NodeName types.NodeName
	// Mounter mounts. Plugins need one with contexts and a mount table, as the mounters of
	// host.New and fakemount.New are. host.Wrap makes one of any other mounter, as
	// volumemanager.New and embedded.Open do.
	Mounter mountutils.Interface

	Secrets         SecretGetter
	ConfigMaps      ConfigMapGetter
	Tokens          TokenRequester
	TrustBundles    TrustBundleGetter
	PodCertificates PodCertificateRequester
	Allocatable     AllocatableGetter
	Events          EventSink
	HostFiles       HostFiles
	Pods            PodRunner
	Releases        ReleaseVerifier
	CSIDrivers      CSIDriverGetter
	Attachments     AttachmentGetter
	CSINode         CSINodePublisher
	Endpoints       EndpointsGetter
}

// SecretGetter reads secrets. If the secret does not exist, the error matches
// [ErrNotFound]. The caller must not change the result.
type SecretGetter interface {
	GetSecret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// ConfigMapGetter reads config maps. If the config map does not exist, the error
// matches [ErrNotFound]. The caller must not change the result.
type ConfigMapGetter interface {
	GetConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
}

// EndpointsGetter reads the addresses of Endpoints objects. If the object does not exist,
// the error matches [ErrNotFound]. The caller owns the result.
type EndpointsGetter interface {
	// GetEndpointAddresses returns the IP addresses that are ready, in the order of the
	// object, each once. There may be none.
	GetEndpointAddresses(ctx context.Context, namespace, name string) ([]string, error)
}

// TokenRequester issues service account tokens bound to a pod, as the API's
// TokenRequest does. The request has audiences, expirationSeconds and
// boundObjectRef. The result is a copy of the request with its status set.
type TokenRequester interface {
	RequestToken(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
}

// TokenForgetter is implemented by a [TokenRequester] that keeps tokens. Absent:
// there is nothing to forget.
type TokenForgetter interface {
	// ForgetTokens drops all tokens that are bound to a pod. Plugins call it when
	// they tear down a volume with a token. It never blocks. It is no error if
	// there are no tokens. A volume that still needs a token gets a new one.
	ForgetTokens(podUID types.UID)
}

// TrustBundleGetter reads the PEM certificates of cluster trust bundles. If the
// bundle does not exist, the error matches [ErrNotFound].
type TrustBundleGetter interface {
	GetTrustBundle(ctx context.Context, name string) (pem string, err error)
	// GetTrustBundlesBySigner returns the union of the signer's bundles that the
	// selector selects, without duplicates and in a stable order. A nil selector
	// selects nothing. An empty selector selects everything.
	GetTrustBundlesBySigner(ctx context.Context, signer string, selector *metav1.LabelSelector) (pem string, err error)
}

// TrustBundleWatcher is implemented by a [TrustBundleGetter] that reports
// changes. Absent: the changes are those that the node's object source reports of
// kind ClusterTrustBundle.
type TrustBundleWatcher interface {
	// WatchTrustBundles calls f after a bundle was created, changed or deleted,
	// or became known. It does so until stop is called, as an objects.Source
	// does.
	WatchTrustBundles(f func()) (stop func())
}

// AllocatableGetter returns the resources that the node's pods may use in all.
// They are the limits of a container without limits of its own.
type AllocatableGetter interface {
	GetAllocatable(ctx context.Context) (v1.ResourceList, error)
}

// EventSink receives events about pods.
//
//   - It never fails.
//   - It does not block for long: the operation that the event is about waits for
//     it.
//   - It is called from several goroutines at once.
//   - It is never called with a lock of the volume manager held. So it may call
//     the manager's methods that do not block.
//   - It only reads the pod.
type EventSink interface {
	// Event reports something about a pod. eventType is v1.EventTypeNormal or
	// v1.EventTypeWarning. reason is one word such as "FailedMount".
	Event(pod *v1.Pod, eventType, reason, message string)
}

// Tracer records spans, as a Tracer of OpenTelemetry does: where the time of an operation goes.
//
//   - Start begins a span, as a child of the span in ctx. It returns a context that is derived from
//     ctx and has the span, and the function that ends the span, with the outcome: nil or an error.
//   - It is called from several goroutines at once, with no lock of the volume manager held. A
//     tracer that blocks delays the one operation that it is told of. One that panics is not heard.
//   - Names and attributes are as [log/slog] has them, and hold no secrets. Errors are those that
//     the manager shows.
type Tracer interface {
	Start(ctx context.Context, name string, attributes ...slog.Attr) (context.Context, func(error))
}

// HostFiles is the host's file system for hostPath and local volumes. Agents need
// it if they see that file system at another place, as in a container. Absent:
// the process's own file system.
type HostFiles interface {
	// Stat follows links.
	Stat(ctx context.Context, path string) (fs.FileInfo, error)
	// MakeDir makes a directory and its missing parents with exactly perm.
	MakeDir(ctx context.Context, path string, perm fs.FileMode) error
	// MakeFile makes an empty file with exactly perm. Its directory must exist.
	MakeFile(ctx context.Context, path string, perm fs.FileMode) error
}

// HostOwnership is implemented by a [HostFiles] that can give the host's trees to
// a group. Absent: local volumes of pods with an fsGroup are refused, because
// this process may see other files under their path.
type HostOwnership interface {
	// SetOwnership is [fsgroup.Set] for a path of the host.
	SetOwnership(ctx context.Context, path string, attributes Attributes, args MounterArgs) error
}

// HostDisks is implemented by a [HostFiles] that can identify the disk at a path
// of the host. Absent: local volumes that name their disk are refused, because
// this process may see another disk at their path.
type HostDisks interface {
	// CheckDisk returns nil only if the disk at the path of a local
	// PersistentVolume is the volume's own. The volume names its disk by its
	// annotation podvol.io/local-volume-id. CheckDisk only reads the argument.
	CheckDisk(ctx context.Context, pv *v1.PersistentVolume) error
}

// RoleHolder is implemented by hosts whose roles are other values than the host
// itself, as in [Host]. Absent: only the host itself can have roles.
type RoleHolder interface {
	// Roles returns the values that may implement roles. None of them is nil.
	Roles() []any
}

// Role returns the host's implementation of the role R, an interface such as
// [SecretGetter]. It is the host itself if it implements R, else the first of the
// host's roles that does. If there is none, the error is a *[MissingRoleError].
// Plugins call Role when a pod needs the role, not in Init. So a host without the
// role can serve all other pods.
func Role[R any](host VolumeHost) (R, error) {
	if r, ok := host.(R); ok {
		return r, nil
	}
	if holder, ok := host.(RoleHolder); ok {
		for _, role := range holder.Roles() {
			if r, ok := role.(R); ok {
				return r, nil
			}
		}
	}
	var none R
	role := reflect.TypeFor[R]()
	return none, &MissingRoleError{Role: role.String(), Field: roleFields()[role]}
}

// roleFields are the names of the [Host] fields by their types, of which each role is one.
// Hosts that lack a role are asked for it with every volume.
var roleFields = sync.OnceValue(func() map[reflect.Type]string {
	fields := make(map[reflect.Type]string)
	for _, field := range slices.Backward(reflect.VisibleFields(reflect.TypeFor[Host]())) { // the first of a type counts
		fields[field.Type] = field.Name
	}
	return fields
})

// MissingRoleError says that the host lacks a role that a volume needs.
type MissingRoleError struct {
	// Role is the interface's name, such as "volume.TokenRequester".
	Role string
	// Field is the name of the role's field in [Host] and in the configurations
	// that hosts are made of, such as "Tokens"; empty: the role has no field of
	// its own.
	Field string
	// Advice says what to do, if the plugin knows more than that the volume host
	// needs the role.
	Advice string
}

func (e *MissingRoleError) Error() string {
	role, advice := e.Role, "give the volume host one to use this kind of volume"
	if e.Field != "" {
		role = e.Field + " (" + e.Role + ")"
		advice = "set " + e.Field + " in the configuration of the manager, in volume.Host or in podfiles.Sources, to use this kind of volume"
	}
	return fmt.Sprintf("this node has no %s; %s", role, cmp.Or(e.Advice, advice))
}

// GetPodVolumeDir implements [VolumeHost].
func (h *Host) GetPodVolumeDir(podUID types.UID, plugin, volume string) string {
	return filepath.Join(h.podDir(podUID), "volumes", layout.EscapeQualifiedName(plugin), volume)
}

// GetPodPluginDir implements [VolumeHost].
func (h *Host) GetPodPluginDir(podUID types.UID, plugin string) string {
	return filepath.Join(h.podDir(podUID), "plugins", layout.EscapeQualifiedName(plugin))
}

// GetPluginDir implements [VolumeHost].
func (h *Host) GetPluginDir(plugin string) string {
	return filepath.Join(h.RootDir, "plugins", plugin)
}

// GetMounter implements [VolumeHost].
func (h *Host) GetMounter() mountutils.Interface { return h.Mounter }

// GetNodeName implements [VolumeHost].
func (h *Host) GetNodeName() types.NodeName { return h.NodeName }

// Roles implements [RoleHolder]. Each role is narrowed to its own interface. A
// value that was given for one role so does not count as another role, even if it
// implements that.
func (h *Host) Roles() []any {
	var present []any
	add := func(given bool, role any) {
		if given {
			present = append(present, role)
		}
	}
	add(h.Secrets != nil, struct{ SecretGetter }{h.Secrets})
	add(h.ConfigMaps != nil, struct{ ConfigMapGetter }{h.ConfigMaps})
	add(h.Tokens != nil, struct{ TokenRequester }{h.Tokens})
	add(h.TrustBundles != nil, struct{ TrustBundleGetter }{h.TrustBundles})
	add(h.PodCertificates != nil, struct{ PodCertificateRequester }{h.PodCertificates})
	add(h.Allocatable != nil, struct{ AllocatableGetter }{h.Allocatable})
	add(h.Events != nil, struct{ EventSink }{h.Events})
	add(h.HostFiles != nil, struct{ HostFiles }{h.HostFiles})
	add(h.Pods != nil, struct{ PodRunner }{h.Pods})
	add(h.Releases != nil, struct{ ReleaseVerifier }{h.Releases})
	add(h.CSIDrivers != nil, struct{ CSIDriverGetter }{h.CSIDrivers})
	add(h.Attachments != nil, struct{ AttachmentGetter }{h.Attachments})
	add(h.CSINode != nil, struct{ CSINodePublisher }{h.CSINode})
	add(h.Endpoints != nil, struct{ EndpointsGetter }{h.Endpoints})
	owner, can := h.HostFiles.(HostOwnership)
	add(can, struct{ HostOwnership }{owner})
	disks, can := h.HostFiles.(HostDisks)
	add(can, struct{ HostDisks }{disks})
	unused, can := h.Releases.(UnusedVerifier)
	add(can, struct{ UnusedVerifier }{unused})
	forgetter, can := h.Tokens.(TokenForgetter)
	add(can, struct{ TokenForgetter }{forgetter})
	watcher, can := h.TrustBundles.(TrustBundleWatcher)
	add(can, struct{ TrustBundleWatcher }{watcher})
	return present
}

func (h *Host) podDir(podUID types.UID) string {
	return filepath.Join(h.RootDir, "pods", string(podUID))
}

// PodVolume is the identity of one volume of one pod. Most mounters and
// unmounters need it and embed it. Its methods do no I/O. It is a plain value.
type PodVolume struct {
	Host   VolumeHost
	Plugin string
	// Name is the spec's name ([Spec.Name]).
	Name   string
	PodUID types.UID
	// Pod is the pod's namespace and name; empty for an unmounter.
	Pod types.NamespacedName
}

// NewPodVolume returns the identity of a spec's volume in a pod. It refuses names
// and UIDs that could lead out of the pod's directory. The error is an *[Error]
// of NewMounter with an *[InvalidSpecError].
func NewPodVolume(host VolumeHost, plugin string, spec *Spec, pod *v1.Pod) (PodVolume, error) {
	v := PodVolume{Host: host, Plugin: plugin, Name: spec.Name()}
	if pod == nil {
		return PodVolume{}, v.Error("NewMounter", Invalid("pod", "is missing"))
	}
	v.PodUID, v.Pod = pod.UID, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	if err := v.check(); err != nil {
		return PodVolume{}, v.Error("NewMounter", err)
	}
	return v, nil
}

// NewUnmountedPodVolume is NewPodVolume for an unmounter, which knows only the
// pod's UID. The error is an *[Error] of NewUnmounter.
func NewUnmountedPodVolume(host VolumeHost, plugin, volumeName string, podUID types.UID) (PodVolume, error) {
	v := PodVolume{Host: host, Plugin: plugin, Name: volumeName, PodUID: podUID}
	if err := v.check(); err != nil {
		return PodVolume{}, v.Error("NewUnmounter", err)
	}
	return v, nil
}

func (v PodVolume) check() error {
	if err := CheckPathSegment("volume name", v.Name); err != nil {
		return err
	}
	return CheckPathSegment("pod UID", string(v.PodUID))
}

// GetPath returns the volume's directory in the pod.
func (v PodVolume) GetPath() string { return v.Host.GetPodVolumeDir(v.PodUID, v.Plugin, v.Name) }

// Error wraps err in an *[Error] that names this volume. Error(op, nil) is nil.
func (v PodVolume) Error(op string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Plugin: v.Plugin, Volume: v.Name, Pod: v.Pod, PodUID: v.PodUID, Err: err}
}

// maxSegment is NAME_MAX of Linux's file systems, in bytes.
const maxSegment = 255

// CheckPathSegment refuses a string that cannot be the name of one directory
// entry, or cannot be stored in JSON: empty, longer than 255 bytes, "." or "..",
// no UTF-8, or with a slash or a control character. The error is an
// *[InvalidSpecError]; it names the string by the argument what.
func CheckPathSegment(what, s string) error {
	switch {
	case s == "":
		return Invalid(what, "must not be empty")
	case len(s) > maxSegment:
		return Invalid(what, "has %d bytes, at most %d are allowed", len(s), maxSegment)
	case s == "." || s == "..":
		return Invalid(what, "must not be %q", s)
	case !utf8.ValidString(s): // JSON would change it
		return Invalid(what, "must be UTF-8: %q", s)
	case strings.ContainsFunc(s, func(r rune) bool { return r == '/' || unicode.IsControl(r) }):
		return Invalid(what, "must not contain a slash or a control character: %q", s)
	}
	return nil
}
