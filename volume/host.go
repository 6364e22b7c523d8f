package volume

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
)

// VolumeHost is what every plugin needs of the node. Its methods do no I/O and
// are safe for concurrent use. The directories are the kubelet's, so that a
// node can be taken over in either direction.
type VolumeHost interface {
	// GetPodVolumeDir returns <root>/pods/<uid>/volumes/<plugin~>/<volume>.
	GetPodVolumeDir(podUID types.UID, plugin, volume string) string
	// GetPodPluginDir returns <root>/pods/<uid>/plugins/<plugin~>.
	GetPodPluginDir(podUID types.UID, plugin string) string
	// GetPluginDir returns <root>/plugins/<plugin>, the slash kept.
	GetPluginDir(plugin string) string
	// GetMounter returns the node's mounter.
	GetMounter() mount.Interface
	// GetNodeName returns the node's name.
	GetNodeName() types.NodeName
}

// Host is the VolumeHost made of plain values. Each of its fields below
// Mounter is a role; nil means that the host does not have it.
type Host struct {
	// RootDir is the absolute directory below which everything is.
	RootDir  string
	NodeName types.NodeName
	// Mounter mounts. For one without a mount table of its own, plugins read the
	// whole table of the process for each question ([mount.TableOf]): give the host
	// what [mount.KeepTable] returns for it, once, as volumemanager.New and
	// embedded.Open do. The result of mount.New has a table.
	Mounter mount.Interface

	Secrets      SecretGetter
	ConfigMaps   ConfigMapGetter
	Tokens       TokenRequester
	TrustBundles TrustBundleGetter
	Allocatable  AllocatableGetter
	Events       EventSink
	HostFiles    HostFiles
	Pods         PodRunner
	Releases     ReleaseVerifier
}

// SecretGetter reads secrets. A secret that does not exist is an error that
// matches [ErrNotFound]. The caller must not change the result.
type SecretGetter interface {
	GetSecret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// ConfigMapGetter reads config maps. A config map that does not exist is an
// error that matches [ErrNotFound]. The caller must not change the result.
type ConfigMapGetter interface {
	GetConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
}

// TokenRequester issues service account tokens bound to a pod, as the API's
// TokenRequest does: the request's audiences, expirationSeconds and
// boundObjectRef go in, a copy with its status filled in comes out.
type TokenRequester interface {
	RequestToken(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
}

// TokenForgetter is implemented by a [TokenRequester] that keeps tokens. Absent:
// there is nothing to forget.
type TokenForgetter interface {
	// ForgetTokens drops all tokens that are bound to a pod, which plugins call
	// when a volume with one is torn down. It never blocks; what is not known is
	// no error. Whoever still needs a token gets a new one.
	ForgetTokens(podUID types.UID)
}

// TrustBundleGetter reads the PEM certificates of cluster trust bundles. What
// does not exist is an error that matches [ErrNotFound].
type TrustBundleGetter interface {
	GetTrustBundle(ctx context.Context, name string) (pem string, err error)
	// GetTrustBundlesBySigner returns the union of the signer's bundles that
	// the selector selects, without duplicates and in a stable order. A nil
	// selector selects nothing, an empty one everything.
	GetTrustBundlesBySigner(ctx context.Context, signer string, selector *metav1.LabelSelector) (pem string, err error)
}

// TrustBundleWatcher is implemented by a [TrustBundleGetter] that tells of
// changes. Absent: they are those of the objects of kind ClusterTrustBundle where the
// node's objects come from.
type TrustBundleWatcher interface {
	// WatchTrustBundles calls f after any bundle was created, changed or deleted,
	// or became known, until stop is called, as an objects.Source does.
	WatchTrustBundles(f func()) (stop func())
}

// AllocatableGetter returns what the node's pods may use in all; a container
// without a limit is limited by it.
type AllocatableGetter interface {
	GetAllocatable(ctx context.Context) (v1.ResourceList, error)
}

// EventSink takes events about pods. It never fails, and does not block for
// long: what the event is about goes on only afterwards. It is called from
// several goroutines at once, never with a lock of the volume manager held, so
// that it may call the manager's methods that do not block. The pod is only
// read.
type EventSink interface {
	// Event reports something about a pod; eventType is v1.EventTypeNormal or
	// v1.EventTypeWarning, reason one word such as "FailedMount".
	Event(pod *v1.Pod, eventType, reason, message string)
}

// HostFiles is the host's file system for hostPath and local volumes, for
// agents that see it elsewhere, as in a container. Absent: the process's own.
type HostFiles interface {
	// Stat follows links.
	Stat(ctx context.Context, path string) (fs.FileInfo, error)
	// MakeDir makes a directory and its missing parents with exactly perm.
	MakeDir(ctx context.Context, path string, perm fs.FileMode) error
	// MakeFile makes an empty file with exactly perm. Its directory must exist.
	MakeFile(ctx context.Context, path string, perm fs.FileMode) error
}

// HostOwnership is implemented by a [HostFiles] that can give the host's trees
// to a group. Absent: local volumes of pods with an fsGroup are refused, for
// what this process sees under their path is not theirs.
type HostOwnership interface {
	// SetOwnership is [SetOwnership] for a path of the host.
	SetOwnership(ctx context.Context, path string, attributes Attributes, args MounterArgs) error
}

// HostDisks is implemented by a [HostFiles] that can tell which disk is at a path
// of the host. Absent: local volumes that say which disk they are are refused, for
// what this process sees at their path may be another.
type HostDisks interface {
	// CheckDisk returns nil only if what is at the path of a local
	// PersistentVolume is the disk that the volume says it is, by its annotation
	// podvol.io/local-volume-id. The argument is only read.
	CheckDisk(ctx context.Context, pv *v1.PersistentVolume) error
}

// RoleHolder is implemented by hosts whose roles are other values than the
// host itself, as [Host] does. Absent: the host itself is asked alone.
type RoleHolder interface {
	// Roles returns the values that may implement roles, never nil ones.
	Roles() []any
}

// Role returns the host's implementation of the role R, an interface such as
// [SecretGetter]: the host itself if it implements R, else the first of its
// roles that does, else a *[MissingRoleError]. Plugins call it when a pod needs
// the role, not in Init, so that a host without it can serve everything else.
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
	return none, &MissingRoleError{Role: role.String(), Field: fieldOf(role)}
}

// fieldOf is the name of the field in which a [Host] has the role, if it has one.
func fieldOf(role reflect.Type) string {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Host]()) {
		if field.Type == role {
			return field.Name
		}
	}
	return ""
}

// MissingRoleError says that the host lacks a role that a volume needs.
type MissingRoleError struct {
	// Role is the interface's name, such as "volume.TokenRequester".
	Role string
	// Field is what [Host], and the configurations that hosts are made of, call
	// it, such as "Tokens"; empty where it is no field of its own.
	Field string
	// Advice says what to do, if a plugin knows it better than that the volume
	// host needs one.
	Advice string
}

func (e *MissingRoleError) Error() string {
	role, advice := e.Role, "give the volume host one to use this kind of volume"
	if e.Field != "" {
		role = e.Field + " (" + e.Role + ")"
		advice = "set " + e.Field + " in the configuration of the manager, or in volume.Host, to use this kind of volume"
	}
	return fmt.Sprintf("this node has no %s; %s", role, cmp.Or(e.Advice, advice))
}

// GetPodVolumeDir implements [VolumeHost].
func (h *Host) GetPodVolumeDir(podUID types.UID, plugin, volume string) string {
	return filepath.Join(h.podDir(podUID), "volumes", EscapeQualifiedName(plugin), volume)
}

// GetPodPluginDir implements [VolumeHost].
func (h *Host) GetPodPluginDir(podUID types.UID, plugin string) string {
	return filepath.Join(h.podDir(podUID), "plugins", EscapeQualifiedName(plugin))
}

// GetPluginDir implements [VolumeHost].
func (h *Host) GetPluginDir(plugin string) string {
	return filepath.Join(h.RootDir, "plugins", plugin)
}

// GetPodVolumeDeviceDir returns <root>/pods/<uid>/volumeDevices/<plugin~>, where
// the links to the devices of a pod's block volumes are.
func GetPodVolumeDeviceDir(host VolumeHost, podUID types.UID, plugin string) string {
	pod := filepath.Dir(filepath.Dir(host.GetPodPluginDir(podUID, plugin)))
	return filepath.Join(pod, "volumeDevices", EscapeQualifiedName(plugin))
}

// GetMounter implements [VolumeHost].
func (h *Host) GetMounter() mount.Interface { return h.Mounter }

// GetNodeName implements [VolumeHost].
func (h *Host) GetNodeName() types.NodeName { return h.NodeName }

// Roles implements [RoleHolder]. Each role is narrowed to its own interface,
// so that a value that is one role does not count as another that it could be
// but was not given as.
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
	add(h.Allocatable != nil, struct{ AllocatableGetter }{h.Allocatable})
	add(h.Events != nil, struct{ EventSink }{h.Events})
	add(h.HostFiles != nil, struct{ HostFiles }{h.HostFiles})
	add(h.Pods != nil, struct{ PodRunner }{h.Pods})
	add(h.Releases != nil, struct{ ReleaseVerifier }{h.Releases})
	owner, can := h.HostFiles.(HostOwnership)
	add(can, struct{ HostOwnership }{owner})
	disks, can := h.HostFiles.(HostDisks)
	add(can, struct{ HostDisks }{disks})
	forgetter, can := h.Tokens.(TokenForgetter)
	add(can, struct{ TokenForgetter }{forgetter})
	watcher, can := h.TrustBundles.(TrustBundleWatcher)
	add(can, struct{ TrustBundleWatcher }{watcher})
	return present
}

func (h *Host) podDir(podUID types.UID) string {
	return filepath.Join(h.RootDir, "pods", string(podUID))
}

// EscapeQualifiedName replaces the slash of a qualified name by "~", as
// directories below pods/ are named.
func EscapeQualifiedName(name string) string { return strings.ReplaceAll(name, "/", "~") }

// UnescapeQualifiedName undoes [EscapeQualifiedName].
func UnescapeQualifiedName(name string) string { return strings.ReplaceAll(name, "~", "/") }
