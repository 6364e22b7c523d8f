package csi

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fsgroup"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/plugins/csi/internal/csivolume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/drivers"
	"github.com/podvol/podvol/volume/plugins/csi/internal/staged"
	"github.com/podvol/podvol/volume/plugins/csi/internal/stats"
	"github.com/podvol/podvol/volume/volumesource"
)

// PluginName is the plugin's name.
const PluginName = csivolume.PluginName

// Config configures the plugin. New keeps none of its maps.
type Config struct {
	// Drivers are the sockets of drivers that do not register themselves, by the
	// drivers' names. A socket is an absolute path.
	Drivers map[string]string
	// RegistryDir is where other drivers register themselves (see [Plugin.Run]); empty:
	// <root>/plugins_registry, as in the kubelet.
	RegistryDir string
	// Defaults are the specs of drivers that have no CSIDriver object, by their names.
	// A nil field has the API's default.
	Defaults map[string]storagev1.CSIDriverSpec
	// CallTimeout bounds each call of a driver; 0: two minutes, as in the kubelet.
	CallTimeout time.Duration
	// Republish is the time between two NodePublishVolume of a volume whose CSIDriver
	// requires them; 0: 90 seconds. It is less where a token ends before.
	Republish time.Duration
	// StagedDir is a directory of this machine in which programs tell each other where they
	// have staged the volumes of drivers: a volume that is staged below another root directory
	// is refused then ([ErrStagedElsewhere]), and so is one that another program stages, unstages
	// or detaches just now. What a program has left that died on the way counts only where
	// something is mounted or written. It is made where it is missing (0700), and
	// removed when it is empty. It should go with the mounts when the machine ends, as
	// /run/podvol-csi does. Empty: the drivers' volumes are this program's alone.
	StagedDir string
	// NoCluster says that no cluster's controllers attach volumes to this node: each driver that
	// shows its Controller service here is asked whether it attaches, unless its CSIDriver object
	// says attachRequired: false. A volume of one that does waits until this node has attached it
	// itself (package selfattach, by [volume.AttachmentGetter]). Where the host knows no
	// attachments it is refused before it is staged, with [ErrNotAttached], and not with
	// whatever error the driver has for it.
	NoCluster bool
	// Dial connects to a driver's socket; nil: by a Unix socket. It is for drivers that are
	// elsewhere, and for tests with virtual time. It may be called concurrently.
	Dial func(ctx context.Context, socket string) (net.Conn, error)
	// Logger gets a line for a driver that appears, fails or recovers; nil: none.
	Logger *slog.Logger
}

// Plugin is the plugin kubernetes.io/csi. It is safe for concurrent use. [Plugin.Close]
// ends its connections.
type Plugin struct {
	pluginbase.Kind[source]
	config  Config
	drivers *drivers.Set
	owner   fsgroup.Setter
	known   volumeCache
	staged  staged.Table
	meter   *stats.Meter
	// cluster is told of the drivers.
	cluster *introductions
	disk    disk // set by Init
}

var (
	_ volume.PersistentVolumePlugin      = (*Plugin)(nil)
	_ volume.MountOptionVolumePlugin     = (*Plugin)(nil)
	_ volumesource.Describer             = (*Plugin)(nil)
	_ volume.SELinuxVolumePlugin         = (*Plugin)(nil)
	_ volumesource.HealthPlugin          = (*Plugin)(nil)
	_ volume.DeviceMountableVolumePlugin = (*Plugin)(nil)
	_ volume.BlockVolumePlugin           = (*Plugin)(nil)
	_ volume.NodeExpandableVolumePlugin  = (*Plugin)(nil)
	_ volume.PodNamedVolumePlugin        = (*Plugin)(nil)
	_ volume.AttachmentChecker           = (*Plugin)(nil)
)

// New returns the plugin. It does no I/O. It refuses names that no driver can have, and
// sockets that are no absolute paths, and unknown policies in Defaults, with an *[volume.InvalidSpecError].
func New(c Config) (*Plugin, error) {
	if c.Republish < 0 {
		return nil, volume.Invalid("Republish", "times must not be negative")
	}
	programs, err := drivers.Config{Sockets: c.Drivers, RegistryDir: c.RegistryDir, CallTimeout: c.CallTimeout, Dial: c.Dial, Logger: c.Logger}.Complete()
	if err != nil {
		return nil, err
	}
	c.CallTimeout, c.Logger, c.Republish = programs.CallTimeout, programs.Logger, cmp.Or(c.Republish, 90*time.Second)
	c.Defaults = maps.Clone(c.Defaults)
	if c.StagedDir != "" && !filepath.IsAbs(c.StagedDir) {
		return nil, volume.Invalid("StagedDir", "must be an absolute path, not %q", c.StagedDir)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Defaults)) {
		spec := c.Defaults[name]
		if err := newDriverSpec(&spec).checkFSGroup(name); err != nil {
			return nil, err
		}
	}
	p := &Plugin{config: c, staged: staged.Table{Dir: c.StagedDir}, drivers: drivers.NewSet(programs), Kind: csivolume.Kind()}
	p.meter = &stats.Meter{Drivers: p.drivers, CallTimeout: c.CallTimeout, Logger: c.Logger}
	p.cluster = newIntroductions(p)
	return p, nil
}

// Init implements [volume.VolumePlugin].
func (p *Plugin) Init(host volume.VolumeHost) error {
	p.disk = disk{csivolume.Disk{Host: host}}
	p.staged.Home, p.staged.IsMounted = p.disk.RootDir(), p.disk.isMounted
	return p.Kind.Init(host)
}

// Close ends the connections. Calls under way end with an uncertain error. It may be
// called twice.
func (p *Plugin) Close() error { return p.drivers.Close() }

// GetAccessModes returns all modes: which of them a volume has is for its driver to say.
func (p *Plugin) GetAccessModes() []v1.PersistentVolumeAccessMode { return csivolume.AccessModes() }

// SupportsMountOption is true: drivers get the options.
func (p *Plugin) SupportsMountOption() bool { return true }

// GetVolumeName returns "driver^handle", as the kubelet does. An inline volume has a
// handle only with its pod; its name here is that of its driver and of the volume.
func (p *Plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	s, err := p.Source(spec)
	if err == nil && !s.IsNothing() {
		s, err = csivolume.Checked(&p.Kind, spec)
	}
	if err != nil {
		return "", err
	}
	p.known.remember(p, spec, s)
	if s.Inline {
		return s.Driver + "^" + csivolume.InlinePrefix + spec.Name(), nil
	}
	return s.Driver + "^" + s.Handle, nil
}

// GetPodVolumeName implements [volume.PodNamedVolumePlugin].
func (p *Plugin) GetPodVolumeName(spec *volume.Spec, podUID types.UID) (string, error) {
	s, err := csivolume.Checked(&p.Kind, spec)
	if err != nil {
		return "", err
	}
	return s.UniqueName(podUID, spec.Name()), nil
}

// DescribeSource returns the driver's name and the handle.
func (p *Plugin) DescribeSource(spec *volume.Spec) string {
	s, err := p.Source(spec)
	if err != nil {
		return ""
	}
	return s.Describe()
}

// SupportsSELinuxContextMount reports whether the CSIDriver says seLinuxMount.
func (p *Plugin) SupportsSELinuxContextMount(ctx context.Context, spec *volume.Spec) (bool, error) {
	s, err := csivolume.Checked(&p.Kind, spec)
	if err != nil {
		return false, err
	}
	driver, err := p.driverSpecOf(ctx, s.Driver)
	return err == nil && driver.seLinuxMount, err
}
