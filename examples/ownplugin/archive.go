package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
)

// archiveName is the plugin's name and the driver that pods name. Use a domain
// of yours; kubernetes.io is taken.
const archiveName = "example.com/archive"

// archive is a plugin that shows the contents of a local tar file, read-only:
//
//	flexVolume:
//	  driver: example.com/archive
//	  options: {path: /srv/site.tar}
//
// FlexVolume is the API's place for sources that it does not know. The files
// are in a tmpfs, that is in memory, and are not renewed while the volume is
// set up. The archive must be on a disk that answers: reading is not given up.
type archive struct{ host volume.VolumeHost }

// newArchive returns a new plugin; a plugin belongs to one manager.
func newArchive() volume.VolumePlugin { return &archive{} }

// Init only keeps the host. What else a plugin needs of a node, such as
// secrets, it asks for by volume.Role when a pod needs it.
func (p *archive) Init(host volume.VolumeHost) error {
	p.host = host
	return nil
}

func (p *archive) GetPluginName() string { return archiveName }

// CanSupport judges the kind of source; NewMounter judges its content.
func (p *archive) CanSupport(spec *volume.Spec) bool {
	return spec != nil && spec.Volume != nil && spec.Volume.FlexVolume != nil && spec.Volume.FlexVolume.Driver == archiveName
}

// GetVolumeName returns the archive's path, which is also what people are shown
// as the volume's source.
func (p *archive) GetVolumeName(spec *volume.Spec) (string, error) {
	if !p.CanSupport(spec) {
		return "", volume.Invalid("volume", "has no flexVolume with driver %s", archiveName)
	}
	options := spec.Volume.FlexVolume.Options
	for name := range options {
		if name != "path" { // most likely misspelt
			return "", volume.Invalid("flexVolume.options", "has %q; only path is known", name)
		}
	}
	path := options["path"]
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return "", volume.Invalid("flexVolume.options.path", "must be the absolute path of a tar file, without . and ..: %q", path)
	}
	if err := mount.CheckSource(path); err != nil {
		return "", volume.Invalid("flexVolume.options.path", "%v", err)
	}
	return path, nil
}

// NewMounter touches nothing. NewPodVolume refuses names that would lead out of
// the pod's directory.
func (p *archive) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	identity, err := volume.NewPodVolume(p.host, archiveName, spec, pod)
	if err != nil {
		return nil, err
	}
	path, err := p.GetVolumeName(spec)
	if err != nil {
		return nil, identity.Error("NewMounter", err)
	}
	return &archiveVolume{PodVolume: identity, path: path}, nil
}

func (p *archive) NewUnmounter(volumeName string, podUID types.UID) (volume.Unmounter, error) {
	identity, err := volume.NewUnmountedPodVolume(p.host, archiveName, volumeName, podUID)
	if err != nil {
		return nil, err
	}
	return &archiveVolume{PodVolume: identity}, nil
}

// ConstructVolumeSpec reads the archive's path from the mount table, since
// SetUpAt gives it to the tmpfs as its source.
func (p *archive) ConstructVolumeSpec(_ context.Context, volumeName, volumePath string) (volume.ReconstructedVolume, error) {
	source := &v1.FlexVolumeSource{Driver: archiveName}
	entry, mounted, err := mountAt(p.host, volumePath)
	if mounted {
		source.Options = map[string]string{"path": entry.Source}
	}
	spec := volume.NewSpecFromVolume(&v1.Volume{Name: volumeName, VolumeSource: v1.VolumeSource{FlexVolume: source}})
	return volume.ReconstructedVolume{Spec: spec, Complete: mounted}, err
}

// archiveVolume is a volume of a pod: mounter and unmounter in one. PodVolume
// knows where it is, NoMetrics that it is not measured.
type archiveVolume struct {
	volume.PodVolume
	volume.NoMetrics
	path string // unknown to an unmounter
}

func (v *archiveVolume) GetAttributes() volume.Attributes { return volume.Attributes{ReadOnly: true} }

func (v *archiveVolume) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return v.SetUpAt(ctx, v.GetPath(), args)
}

func (v *archiveVolume) TearDown(ctx context.Context) error { return v.TearDownAt(ctx, v.GetPath()) }

// SetUpAt may be called again at any time, also after it failed or the process
// died halfway. Whether its work is done it asks the mount table: becoming
// read-only is the last step.
func (v *archiveVolume) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	return v.Error("SetUp", v.setUp(ctx, dir))
}

func (v *archiveVolume) setUp(ctx context.Context, dir string) error {
	entry, mounted, err := mountAt(v.Host, dir)
	if err != nil || mounted && entry.ReadOnly() {
		return volume.NothingDone(err)
	}
	file, err := openArchive(ctx, v.path)
	if err != nil {
		return volume.NothingDone(err) // this mark spares the volume a teardown
	}
	defer file.Close()
	if err := v.fill(ctx, dir, file, mounted); err != nil {
		// The context may have ended; cleaning up gets a little time of its own.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return errors.Join(err, v.tearDown(ctx, dir))
	}
	return nil
}

func (v *archiveVolume) fill(ctx context.Context, dir string, file *os.File, mounted bool) error {
	request := mount.Request{Source: v.path, Target: dir, FSType: "tmpfs",
		Options: []string{"mode=0755", "nosuid", "nodev", fmt.Sprintf("size=%d", tmpfsSize)}}
	if !mounted {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
		if err := mount.Mount(ctx, v.Host.GetMounter(), request); err != nil {
			return err
		}
	}
	if err := unpack(ctx, file, dir); err != nil {
		return err
	}
	request.Options = []string{"remount", "ro", "nosuid", "nodev"}
	return mount.Mount(ctx, v.Host.GetMounter(), request)
}

// TearDownAt may be called again at any time, also for what was never set up.
func (v *archiveVolume) TearDownAt(ctx context.Context, dir string) error {
	return v.Error("TearDown", v.tearDown(ctx, dir))
}

// tearDown removes the directory by rmdir: a recursive deletion would one day
// meet something that is still mounted.
func (v *archiveVolume) tearDown(ctx context.Context, dir string) error {
	_, mounted, err := mountAt(v.Host, dir)
	if err != nil {
		return err
	}
	if mounted {
		_, err := mount.Unmount(ctx, v.Host.GetMounter(), dir, mount.UnmountOptions{})
		if err != nil && !errors.Is(err, mount.ErrNotMounted) {
			return err
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// mountAt asks the mount table, never the file system: a mount may hang.
func mountAt(host volume.VolumeHost, dir string) (entry mount.Entry, mounted bool, err error) {
	mounts := table.Of(host.GetMounter())
	return mounts.At(dir)
}
