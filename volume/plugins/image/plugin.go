// Package image shows pods the files of OCI images: plugin kubernetes.io/image (KEP-4639).
//
//   - The volume manager calls it as any other plugin. Nothing of a container runtime is
//     needed: images are pulled over HTTP, or read from OCI layouts on disk, unpacked layer
//     by layer, and kept by digest below the node's root directory.
//   - The one idea: a layer is unpacked once into a directory of its own, and an image is a
//     tree of hard links to the files of its layers, which is bound into the pods, read-only
//     and noexec, nosuid, nodev. So images share layers and pods share images, on disk and in
//     memory, on each file system, with any number of layers, also in a user namespace, which
//     an overlay of layers does not.
//   - A pod pulls once, by its pull policy, with the pull secrets of the pod, of its service
//     account and of the node. An image that was pulled with a secret is shown only to pods that
//     have the secret, or to which the registry gives the image.
//   - A layer of an artifact that is no tar is shown as a file, named by its title.
//   - Images that no pod shows stay, within a budget, for the next pod.
//   - An agent whose container runtime pulls images gives [Config.Runtime] instead.
//
// Files have the owners that the image names, where this process may set them. An fsGroup and an
// SELinux label change nothing, since pods share the files.
package image

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/plugins/image/internal/oci"
	"github.com/podvol/podvol/volume/plugins/image/internal/registry"
	"github.com/podvol/podvol/volume/plugins/image/internal/store"
	"github.com/podvol/podvol/volume/volumesource"
)

// PluginName is the plugin's name.
const PluginName = "kubernetes.io/image"

// Config configures the plugin. With its zero value images are pulled from registries that
// are reached by TLS, with the pull secrets of pods. All numbers have defaults: 0 is one.
type Config struct {
	// Runtime pulls and shows images in place of this plugin, and the other fields do not count
	// then; nil: the plugin pulls.
	Runtime Runtime
	// Layouts are directories of images that need not be pulled (OCI image layouts). An
	// image is found there by the complete name in its annotation
	// org.opencontainers.image.ref.name or io.containerd.image.name, or by its digest.
	// With the pull policy Always the registry is asked all the same.
	Layouts []string
	// DockerConfig is a file such as /var/lib/kubelet/config.json, with the node's own
	// credentials; empty: it has none. It is read for each pull.
	DockerConfig string
	// ServiceAccounts gives the pull secrets of pods' service accounts; nil: only a pod's own
	// secrets count. In a cluster, admission adds the account's secrets to the pod.
	ServiceAccounts ServiceAccountGetter
	// PlainHTTP are registries, such as "registry.local:5000", that are reached without TLS.
	// Registries of this machine (localhost, 127.0.0.1) always are.
	PlainHTTP []string
	// Transport carries the requests to registries; nil: one with a proxy as the environment
	// says, which gives up a server that does not begin to answer in half a minute.
	Transport http.RoundTripper

	// MaxBytes and MaxEntries are the most that the files of one image may have (16 GiB, one
	// million), MaxLayers is its most layers (500).
	MaxBytes, MaxEntries int64
	MaxLayers            int
	// ReservePercent is the part of the disk that has to stay free (5; less than
	// 0: none).
	ReservePercent int
	// UnusedBytes is how much is kept of layers that no pod's image has, and of the
	// directories of images that no pod has, each of which counts as 4 KiB (4 GiB; less than
	// 0: nothing), and UnusedFor for how long an image stays at least after its last use
	// (2 minutes; less than 0: no time). Images are removed when a volume is torn down, when
	// the manager has begun to run, and while it runs when that time is over.
	UnusedBytes int64
	UnusedFor   time.Duration
	// PullTimeout bounds one pull (2 hours); layers that are complete by then stay.
	// StallTimeout is how long a registry may send less than MinRate bytes a second on
	// average (1 minute, 8 KiB; a rate less than 0: any byte will do): while an image is
	// pulled, none is removed.
	PullTimeout, StallTimeout time.Duration
	MinRate                   int64
	// Logger is told when unused images could not be removed; nil drops that.
	Logger *slog.Logger
}

// ServiceAccountGetter reads service accounts. If the account does not exist, the error
// matches [volume.ErrNotFound]. The caller must not change the result.
type ServiceAccountGetter interface {
	GetServiceAccount(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error)
}

// Request asks for the image of one volume.
type Request struct {
	// Pod is the pod, which is only read, and Volume the volume's name in it.
	Pod    *v1.Pod
	Volume string
	// Reference is the name in the manifest.
	Reference string
	// PullPolicy is never empty.
	PullPolicy v1.PullPolicy
}

// Runtime is an agent's container runtime that has images. Its methods are called for
// several volumes at once, for each one after the other. CRI alone cannot be one: its PullImage
// gives no files, and its runtimes mount images only into containers that they create.
type Runtime interface {
	// PullImage pulls the image by the policy if need be. It returns the directory that
	// shows the image's files, and the image's name with its digest. The directory stays
	// until ReleaseImage. It is idempotent. Its errors keep the causes of this package
	// where one fits.
	PullImage(ctx context.Context, request Request) (dir, ref string, err error)
	// ReleaseImage is called after the volume was unmounted. It is idempotent.
	ReleaseImage(ctx context.Context, podUID types.UID, volume string) error
}

// Plugin is the plugin. Its methods are safe for concurrent use.
type Plugin struct {
	pluginbase.Kind[v1.ImageVolumeSource]
	config   Config
	runtime  Runtime
	attempts attempts
	making   sync.Once
	kept     *store.Store  // made by store, once
	unused   chan struct{} // for Run: something unused has to go later
}

var (
	_ volume.VolumePlugin    = (*Plugin)(nil)
	_ volumesource.Describer = (*Plugin)(nil)
	_ volume.RunningPlugin   = (*Plugin)(nil)
)

// New returns the plugin.
func New(config Config) *Plugin {
	config.MaxBytes = cmp.Or(config.MaxBytes, 16<<30)
	config.MaxEntries = cmp.Or(config.MaxEntries, 1_000_000)
	config.MaxLayers = cmp.Or(config.MaxLayers, 500)
	config.ReservePercent = max(0, cmp.Or(config.ReservePercent, 5))
	config.UnusedBytes = max(0, cmp.Or(config.UnusedBytes, 4<<30))
	config.UnusedFor = max(0, cmp.Or(config.UnusedFor, 2*time.Minute))
	config.PullTimeout = cmp.Or(config.PullTimeout, 2*time.Hour)
	config.StallTimeout = cmp.Or(config.StallTimeout, time.Minute)
	config.MinRate = max(0, cmp.Or(config.MinRate, 8<<10))
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.Transport == nil {
		config.Transport = registry.NewTransport()
	}
	p := &Plugin{config: config, runtime: config.Runtime, unused: make(chan struct{}, 1), Kind: pluginbase.Kind[v1.ImageVolumeSource]{
		Name: PluginName, Field: "image", Inline: func(s *v1.VolumeSource) *v1.ImageVolumeSource { return s.Image },
	}}
	if p.runtime == nil {
		p.runtime = puller{p}
	}
	return p
}

// store is the plugin's directory on the node. It is known once there is a host. Run comes here,
// too, while another manager may initialise the plugin.
func (p *Plugin) store() *store.Store {
	p.making.Do(func() {
		c := p.config
		p.kept = &store.Store{
			Dir: p.InitHost().GetPluginDir(PluginName),
			Limits: store.Limits{Bytes: c.MaxBytes, Entries: c.MaxEntries, Layers: c.MaxLayers,
				Reserve: int64(c.ReservePercent), UnusedBytes: c.UnusedBytes, UnusedFor: c.UnusedFor},
			Mounted: p.mounted,
		}
	})
	return p.kept
}

func (p *Plugin) mounted() ([]string, error) {
	entries, err := table.Of(p.InitHost().GetMounter()).All()
	dirs := make([]string, 0, 2*len(entries))
	for _, e := range entries {
		dirs = append(dirs, e.Root, e.Source)
	}
	return dirs, err
}

// ImageRefs returns the names, with digests, of the images that a pod's volumes show, by the
// volumes' names. It knows those that this plugin has pulled, also in a process before.
//
// A kubelet with the feature ImageVolumeWithDigest (KEP-5365) has them in the pod's
// status.containerStatuses[].volumeMounts[].volumeStatus.image.imageRef, which the API has
// since v0.36.
func (p *Plugin) ImageRefs(podUID types.UID) (map[string]string, error) {
	return p.store().UsedBy(string(podUID))
}

// GetVolumeName returns the complete name of the image.
func (p *Plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	s, err := p.Source(spec)
	if err != nil {
		return "", err
	}
	ref, err := parse(s.Reference)
	return ref.String(), err
}

// DescribeSource returns that name, too.
func (p *Plugin) DescribeSource(spec *volume.Spec) string {
	name, err := p.GetVolumeName(spec)
	if err != nil {
		return ""
	}
	return name
}

// NewMounter implements [volume.VolumePlugin].
func (p *Plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	return p.Mounter(spec, pod, func(pv volume.PodVolume, source *v1.ImageVolumeSource) (volume.Mounter, error) {
		ref, err := parse(source.Reference)
		if err != nil {
			return nil, err
		}
		policy, err := policyOf(source.PullPolicy, ref)
		if err != nil {
			return nil, err
		}
		return &mounter{shown: shown{PodVolume: pv, plugin: p},
			request: Request{Pod: pod, Volume: pv.Name, Reference: source.Reference, PullPolicy: policy}}, nil
	})
}

// policyOf returns the pull policy, by default as the API server sets it.
func policyOf(policy v1.PullPolicy, ref oci.Reference) (v1.PullPolicy, error) {
	switch {
	case policy == "" && ref.Tag == "latest" && ref.Digest == "":
		return v1.PullAlways, nil
	case policy == "":
		return v1.PullIfNotPresent, nil
	case policy != v1.PullAlways && policy != v1.PullIfNotPresent && policy != v1.PullNever:
		return "", volume.Invalid("image.pullPolicy", "%q must be Always, IfNotPresent or Never", policy)
	}
	return policy, nil
}

// NewUnmounter implements [volume.VolumePlugin].
func (p *Plugin) NewUnmounter(volumeName string, podUID types.UID) (volume.Unmounter, error) {
	pv, err := volume.NewUnmountedPodVolume(p.Host, PluginName, volumeName, podUID)
	if err != nil {
		return nil, err
	}
	return &unmounter{shown{PodVolume: pv, plugin: p}}, nil
}

// ConstructVolumeSpec finds the image by the record of its use. It is never complete: the tag
// and the pull policy are not known any more.
func (p *Plugin) ConstructVolumeSpec(_ context.Context, volumeName, volumePath string) (volume.ReconstructedVolume, error) {
	source := &v1.ImageVolumeSource{}
	if podUID, ok := podOf(p.Host, volumeName, volumePath); ok {
		_, ref, err := p.store().Used(podUID, volumeName)
		if err != nil {
			return volume.ReconstructedVolume{}, err
		}
		source.Reference = ref
	}
	return volume.ReconstructedVolume{Spec: volume.NewSpecFromVolume(&v1.Volume{Name: volumeName, VolumeSource: v1.VolumeSource{Image: source}})}, nil
}
