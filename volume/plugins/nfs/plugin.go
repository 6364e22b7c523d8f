package nfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/meter"
	"github.com/podvol/podvol/volume/volumesource"
)

// PluginName is the plugin's name.
const PluginName = "kubernetes.io/nfs"

// New returns the plugin.
func New(config Config) volume.VolumePlugin {
	return &plugin{config: config, breaker: newBreaker(config.Breaker), Kind: pluginbase.Kind[v1.NFSVolumeSource]{
		Name: PluginName, Field: "nfs",
		Inline:     func(s *v1.VolumeSource) *v1.NFSVolumeSource { return s.NFS },
		Persistent: func(s *v1.PersistentVolumeSource) *v1.NFSVolumeSource { return s.NFS },
	}}
}

type plugin struct {
	pluginbase.Kind[v1.NFSVolumeSource]
	config  Config
	breaker *breaker
	meter   meter.Meter
	working keylock.Map[string] // the agent's own mounts, by name
	making  keylock.Map[string] // directories that are being made, by source
}

var (
	_ volume.PersistentVolumePlugin    = (*plugin)(nil)
	_ volume.MountOptionVolumePlugin   = (*plugin)(nil)
	_ volumesource.Describer           = (*plugin)(nil)
	_ volume.WorkMountPlugin           = (*plugin)(nil)
	_ volume.ProvisionableVolumePlugin = (*plugin)(nil)
	_ volume.DeletableVolumePlugin     = (*plugin)(nil)
	_ volumesource.HealthPlugin        = (*plugin)(nil)
)

// Init implements [volume.VolumePlugin]. A configuration that cannot work is an
// error, for a policy [InlinePolicy.Check]'s.
func (p *plugin) Init(host volume.VolumeHost) error {
	if err := errors.Join(p.config.Inline.Check(), p.config.Recycle.check(), p.config.Provision.check()); err != nil {
		return err
	}
	return p.Kind.Init(host)
}

// GetVolumeName returns "server/path" in the kubelet's form, the same for every
// spelling of the same export.
func (p *plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	source, err := p.Source(spec)
	if err != nil {
		return "", err
	}
	e, err := parseExport(source)
	if err != nil {
		return "", err
	}
	e = e.normal()
	return e.server + "/" + e.path, nil
}

// DescribeSource returns "server:/path".
func (p *plugin) DescribeSource(spec *volume.Spec) string {
	source, err := p.Source(spec)
	if err != nil {
		return ""
	}
	e, err := parseExport(source)
	if err != nil {
		return source.Server + ":" + source.Path
	}
	return e.String()
}

func (p *plugin) GetAccessModes() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany}
}

func (p *plugin) SupportsMountOption() bool { return true }

func (p *plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	return p.Mounter(spec, pod, func(pv volume.PodVolume, source *v1.NFSVolumeSource) (volume.Mounter, error) {
		if err := pluginbase.CheckFilesystem(spec, "nfs"); err != nil {
			return nil, err
		}
		e, err := parseExport(source)
		if err != nil {
			return nil, err
		}
		m := &mounter{share: share{pv, p}, export: e, mustBeReadOnly: source.ReadOnly || pluginbase.ReadOnly(spec)}
		if spec.PersistentVolume == nil {
			m.asked(pod)
			return m, nil
		}
		return m, m.persistent(spec)
	})
}

func (p *plugin) NewUnmounter(volumeName string, podUID types.UID) (volume.Unmounter, error) {
	pv, err := volume.NewUnmountedPodVolume(p.Host, PluginName, volumeName, podUID)
	if err != nil {
		return nil, err
	}
	return &unmounter{share{pv, p}}, nil
}

// ConstructVolumeSpec reads server, path and read-only from the mount table.
// Options of the network file system itself, such as vers, are not told apart
// from its defaults, wherever they come from.
// Without a mount, only the name is known.
func (p *plugin) ConstructVolumeSpec(_ context.Context, volumeName, volumePath string) (volume.ReconstructedVolume, error) {
	rebuilt := &v1.NFSVolumeSource{}
	result := volume.ReconstructedVolume{Spec: volume.NewSpecFromVolume(&v1.Volume{
		Name: volumeName, VolumeSource: v1.VolumeSource{NFS: rebuilt}})}
	mounts := table.Of(p.Host.GetMounter())
	entry, mounted, err := mounts.At(volumePath)
	if err != nil {
		return volume.ReconstructedVolume{}, err
	}
	if !mounted || !isNFS(entry) {
		return result, nil
	}
	if e, ok := parseTableSource(entry.Source); ok {
		rebuilt.Server, rebuilt.Path, rebuilt.ReadOnly = e.server, e.path, entry.ReadOnly()
		// A mount of a part of the file system may be some other directory of the
		// server's than the source says. Unusual options come from a PersistentVolume
		// or a pod, and only some of them can be told.
		result.Complete = (entry.Root == "" || entry.Root == "/") && hasUsualOptions(entry)
	}
	return result, nil
}

// hasUsualOptions reports whether a mount has only the options that every
// mount has.
func hasUsualOptions(entry mount.Entry) bool {
	return !slices.ContainsFunc(entry.Options, func(o string) bool { return o != "rw" && o != "ro" && o != "relatime" })
}

// Config is how the plugin behaves on a node. Its zero value is what most nodes
// need: everything that a node's administrator has to opt into is off. It is
// read by [New] only, and checked when the plugin is initialised.
type Config struct {
	// Inline is what pods may ask of servers by annotations.
	Inline InlinePolicy
	// ForceAfter is how long a normal unmount may take before a forced one is tried,
	// which loses data not yet written to a server that does not answer. It is left
	// out while the server answers or another pod has the same file system mounted,
	// see [mount.UnmountOptions]. LazyAfter is how long after its beginning the
	// mount is detached at last, so that its pod can end. 0 means one minute, which
	// is what the kubelet waits before it forces, and two; less than 0 means never.
	ForceAfter, LazyAfter time.Duration
	// Breaker is how the plugin treats servers that do not answer.
	Breaker BreakerConfig
	// Recycle is how volumes are emptied for their next claim.
	Recycle RecycleConfig
	// Provision has what storage classes leave open.
	Provision ProvisionConfig
}

const (
	defaultForceAfter = time.Minute
	defaultLazyAfter  = 2 * time.Minute
)

// ladder is how volumes are unmounted.
func (p *plugin) ladder() mount.UnmountOptions {
	return mount.UnmountOptions{
		ForceAfter: max(0, cmp.Or(p.config.ForceAfter, defaultForceAfter)),
		LazyAfter:  max(0, cmp.Or(p.config.LazyAfter, defaultLazyAfter)),
	}
}

// place is a directory of the host's by the path that the host has for it, and
// by the one that the mount table has, where no links are left: a root directory
// may lie behind some.
type place struct{ given, real string }

// placeOf resolves the links of a directory that nothing is mounted at. One that
// does not exist has nothing mounted below it either. The caller reads the mount
// table first: a directory may be made meanwhile.
func placeOf(dir string) (place, error) {
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return place{dir, dir}, nil
	}
	return place{dir, real}, err
}

// holds reports whether a target of the mount table lies below the directory.
func (p place) holds(target string) bool {
	return pathin.Strictly(p.real, target) || pathin.Strictly(p.given, target)
}

// GetMetrics returns the metrics of the server's file system. Where the server does not
// answer in time, or no longer knows the directory (its export was removed or made anew),
// the error is a *[mount.Error] of cause [mount.ErrTimedOut] or [mount.ErrStaleHandle]
// with advice, around the *[meter.Error].
//
// A stale share stays mounted: the pod's containers have it, and a mount beneath theirs
// would not reach them. A set-up that finds it in the mount table changes nothing, also
// after a restart of the agent. The pod must be deleted and made anew.
func (s *share) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	m := s.Host.GetMounter()
	metrics, err := podmount.Metrics(ctx, m, &s.plugin.meter, s.GetPath())
	return metrics, s.Error("GetMetrics", explain(m, s.GetPath(), err))
}

// explain adds the cause and the advice to what a share answers.
func explain(m mount.Interface, path string, err error) error {
	var cause mount.Cause
	switch {
	case errors.Is(err, unix.ESTALE):
		cause = mount.ErrStaleHandle
	case errors.Is(err, unix.ETIMEDOUT), errors.Is(err, context.DeadlineExceeded):
		cause = mount.ErrTimedOut
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		cause = mount.ErrAccessDenied
	default:
		return err
	}
	failure := &mount.Error{Op: mount.OpMeasure, Target: path, Cause: cause, Err: err}
	if entry, mounted, tableErr := table.Of(m).At(path); tableErr == nil && mounted {
		failure.Source, failure.FSType = entry.Source, entry.FSType
	}
	return failure
}

const fsType = "nfs"

// share is what mounter and unmounter have in common.
type share struct {
	volume.PodVolume
	plugin *plugin
}

type mounter struct {
	share
	export  export
	options []string
	// mustBeReadOnly is the volume's own wish, which an existing mount must fulfil.
	// Options may say so too, but an existing mount may have older ones.
	mustBeReadOnly bool
	// directory is to be made if it is missing; nil: not.
	directory *directoryRequest
	// refused is the policy's error; nil: none. An existing mount is kept.
	refused error
}

// persistent reads from a PersistentVolume how it is to be mounted.
func (m *mounter) persistent(spec *volume.Spec) (err error) {
	if m.options, err = pluginbase.Options(spec, m.mustBeReadOnly); err != nil {
		return err
	}
	m.mustBeReadOnly = m.readOnly()
	mode, err := modeIn(spec.PersistentVolume.Annotations, AnnotationMakeDirectory)
	if err != nil || mode == nil {
		return err
	}
	m.directory, m.refused = m.plugin.config.Inline.directoryFor(m.Name, m.export, *mode)
	return nil
}

// asked reads from a pod how its inline volume is to be mounted.
func (m *mounter) asked(pod *v1.Pod) {
	policy := m.plugin.config.Inline
	asked, err := askedOptions(pod, m.Name)
	if err == nil {
		m.options, err = policy.optionsFor(m.Name, m.export.server, asked, m.mustBeReadOnly)
	}
	mode, modeErr := askedMode(pod, m.Name)
	if mode != nil {
		m.directory, modeErr = policy.directoryFor(m.Name, m.export, *mode)
	}
	m.refused = errors.Join(err, modeErr)
}

// GetAttributes reports Managed false: whose files are whose is the server's
// business; supplementalGroups give a pod access.
func (m *mounter) GetAttributes() volume.Attributes {
	return volume.Attributes{ReadOnly: m.readOnly()}
}

func (m *mounter) readOnly() bool { return m.mustBeReadOnly || slices.Contains(m.options, "ro") }

func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

func (m *mounter) SetUpAt(ctx context.Context, dir string, args volume.MounterArgs) error {
	request := mount.Request{Source: m.export.String(), Target: dir, FSType: fsType, Options: slices.Clone(m.options)}
	if m.refused != nil {
		return m.Error("SetUp", m.unlessMounted(request))
	}
	err := m.mount(ctx, request)
	if m.directory != nil && isMissing(err) {
		err = m.makeAndMount(ctx, request, args, err)
	}
	return m.Error("SetUp", err)
}

func (m *mounter) mount(ctx context.Context, request mount.Request) error {
	made, err := m.plugin.setUp(ctx, m.export, request, m.isMounted)
	if err != nil || !made || m.directory == nil {
		return err
	}
	return m.refuseUnfinished(ctx, request.Target)
}

// unlessMounted returns why nothing is to be mounted, unless something is: its
// pod was allowed it once, and runs.
func (m *mounter) unlessMounted(request mount.Request) error {
	mounted, err := podmount.Mounted(m.Host.GetMounter(), request, m.isMounted)
	if err != nil || mounted {
		return err
	}
	return m.refused
}

// isMounted reports whether the entry is this share. A writable mount is not
// what a read-only volume asked for.
func (m *mounter) isMounted(entry mount.Entry) bool {
	found, ok := parseTableSource(entry.Source)
	return ok && isNFS(entry) && found.same(m.export) && (entry.ReadOnly() || !m.mustBeReadOnly)
}

func isNFS(entry mount.Entry) bool { return entry.FSType == "nfs" || entry.FSType == "nfs4" }

type unmounter struct{ share }

func (u *unmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.GetPath()) }

func (u *unmounter) TearDownAt(ctx context.Context, dir string) error {
	return u.Error("TearDown", podmount.TearDown(ctx, u.Host.GetMounter(), dir, u.plugin.ladder()))
}

// mountByOwnName mounts an export so that the mount table shows it by the name that was
// asked for.
//
// Linux lets mounts of one file system of a server share a superblock, however the server
// is spelt: by name or address, and with NFSv4.1 by any two of its addresses (RFC 8881,
// 2.10.5). All of them then show the first one's name, and would be taken for another
// export's mount later. So such a mount is made again with a superblock of its own
// (nosharecache of nfs(5)), with a cache of its own.
func mountByOwnName(ctx context.Context, m mount.Interface, e export, request mount.Request) error {
	if err := mount.Mount(ctx, m, request); err != nil {
		return err
	}
	other, err := showsAnother(m, e, request.Target)
	if err != nil || !other {
		return err
	}
	if _, err := mount.Unmount(ctx, m, request.Target, mount.UnmountOptions{}); err != nil {
		return fmt.Errorf("%s is mounted by another name of its server, and to be mounted by its own: %w", e, err)
	}
	request.Options = append(slices.Clone(request.Options), "nosharecache")
	return mount.Mount(ctx, m, request)
}

// showsAnother reports whether the mount at dir has another export's name.
func showsAnother(m mount.Interface, e export, dir string) (bool, error) {
	mounts := table.Of(m)
	entry, mounted, err := mounts.At(dir)
	if err != nil || !mounted || !isNFS(entry) {
		return false, err
	}
	found, ok := parseTableSource(entry.Source)
	return ok && !found.same(e), nil
}
