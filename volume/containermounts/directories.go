package containermounts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/subpath"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
)

// Directory is where an agent has one volume of a pod.
type Directory struct {
	// Path is the directory, or the file that a hostPath is: absolute.
	Path string
	// ReadOnly: no container can write to it, and nothing is made in it. So it is anyway of a
	// configMap, a secret, a downwardAPI, a projected or an image volume, and of a source
	// whose field readOnly is set.
	ReadOnly bool
}

// ErrNoDirectory is the cause where a container mounts a volume for which there is no
// [Directory].
const ErrNoDirectory volume.Cause = "the volume has no directory"

// Resolve is [Binder.Mounts] for an agent that mounts nothing: the rules, the order, the
// errors and the mount points inside one another are the same, but the volumes are the
// agent's own directories, by their names in the pod. No manager and no root is needed.
//
// Sub-paths are looked up as safely: no link leads out of the volume, and a
// missing one is made, unless the directory is read-only. But nothing is bound.
// Mount.Source is the name, without links, that the sub-path had when it was
// looked up:
//
//   - A container that writes to the volume can put something else there before
//     the next one is started from that name. A bind would still lead to the file
//     found. So resolve right before each start, and let no container run
//     meanwhile that may change the volume; or use a [Binder].
//   - A file that is replaced (a ConfigMap's key, by an update) is seen by the next start only.
//
// On a Unix other than Linux that name is looked up after the file, and compared with it.
// Volumes that have sub-paths or mount points in them must be readable, and a sub-path leads
// to a directory or a regular file: for any other file the error matches
// [errors.ErrUnsupported]. On a system that is no Unix it does so for each volume, after
// the rules were checked.
//
// Mount.Locked is empty: the mounts that the directories lie in are not looked
// at, nor are devices. A volume without a directory is [ErrNoDirectory]. A file
// system that hangs is waited for until ctx ends. The call may be concurrent; the
// arguments are only read.
func Resolve(ctx context.Context, pod *v1.Pod, containerName string, volumes map[string]Directory, options Options) ([]Mount, error) {
	if pod == nil {
		return nil, volume.Invalid("pod", "is missing")
	}
	spec, field := findContainer(pod, containerName)
	if spec == nil {
		return nil, unknownContainer(podName(pod), containerName, containerNames(pod))
	}
	c := &container{places: &directories{all: volumes}, pod: pod, spec: spec, field: field, options: options}
	if err := c.checkMappings(); err != nil {
		return nil, err
	}
	return c.mounts(ctx)
}

// directories are the places of [Resolve].
type directories struct {
	all     map[string]Directory
	reaches blockingcall.Group[string]
}

func (d *directories) mountedVolume(pod *v1.Pod, name string) (mountedVolume, error) {
	dir, ok := d.all[name]
	v := mountedVolume{name: name, record: &mountrecord.Record{PodUID: pod.UID, Pod: podName(pod), Path: dir.Path, ReadOnly: dir.ReadOnly}}
	for i := range pod.Spec.Volumes {
		if s := &pod.Spec.Volumes[i]; s.Name == name {
			v.claim, v.attributes = s.PersistentVolumeClaim, attributesOf(s)
		}
	}
	switch {
	case !ok:
		return v, v.failed(volume.NothingDone(&volume.Failure{Cause: ErrNoDirectory, Subject: name, What: "it has no directory", Next: "give Resolve one for each volume that the container mounts"}))
	case !filepath.IsAbs(dir.Path):
		return v, v.failed(volume.Invalid("directory", "%q must be an absolute path", dir.Path))
	}
	return v, nil
}

// attributesOf are those that the kubelet's plugin of this kind of volume has, as far as they
// follow from the manifest: no container writes to files that are made for the pod, and they
// get the container's SELinux label.
func attributesOf(v *v1.Volume) volume.Attributes {
	switch {
	case v.ConfigMap != nil, v.Secret != nil, v.DownwardAPI != nil, v.Projected != nil:
		return volume.Attributes{ReadOnly: true, Managed: true, SELinuxRelabel: true}
	case v.EmptyDir != nil:
		return volume.Attributes{Managed: true, SELinuxRelabel: true}
	}
	return volume.Attributes{ReadOnly: v.Image != nil || asksReadOnly(&v.VolumeSource)}
}

// asksReadOnly reports whether the source's own field readOnly is set.
func asksReadOnly(s *v1.VolumeSource) bool {
	isTrue := func(b *bool) bool { return b != nil && *b }
	return s.NFS != nil && s.NFS.ReadOnly ||
		s.CSI != nil && isTrue(s.CSI.ReadOnly) ||
		s.ISCSI != nil && s.ISCSI.ReadOnly ||
		s.FC != nil && s.FC.ReadOnly ||
		s.RBD != nil && s.RBD.ReadOnly ||
		s.CephFS != nil && s.CephFS.ReadOnly ||
		s.Cinder != nil && s.Cinder.ReadOnly ||
		s.Glusterfs != nil && s.Glusterfs.ReadOnly ||
		s.FlexVolume != nil && s.FlexVolume.ReadOnly ||
		s.AzureFile != nil && s.AzureFile.ReadOnly ||
		s.AzureDisk != nil && isTrue(s.AzureDisk.ReadOnly) ||
		s.AWSElasticBlockStore != nil && s.AWSElasticBlockStore.ReadOnly ||
		s.GCEPersistentDisk != nil && s.GCEPersistentDisk.ReadOnly ||
		s.PortworxVolume != nil && s.PortworxVolume.ReadOnly ||
		s.Quobyte != nil && s.Quobyte.ReadOnly ||
		s.ScaleIO != nil && s.ScaleIO.ReadOnly ||
		s.StorageOS != nil && s.StorageOS.ReadOnly
}

func (d *directories) source(ctx context.Context, _ *container, p *planned) error {
	p.Source = p.volume.record.Path
	return d.reach(ctx, p.Source+"\x00"+p.SubPath, func() error {
		if p.SubPath == "" {
			is, err := identifyAt(p.Source)
			p.File = err == nil && !is.dir
			return err
		}
		root, err := openPlace(p.volume.record.Path)
		if err != nil {
			return err
		}
		defer root.Close()
		return d.subPath(ctx, p, root)
	})
}

// subPath looks a sub-path up, and finds out its name without links.
func (d *directories) subPath(ctx context.Context, p *planned, root *os.File) error {
	open := func() (*os.File, error) { return subpath.OpenOrMake(ctx, root, p.SubPath) }
	if p.volume.readOnly() {
		open = func() (*os.File, error) { return subpath.Open(root, p.SubPath) }
	}
	file, err := open()
	if errors.Is(err, fs.ErrNotExist) && p.volume.readOnly() {
		return &subpath.ReadOnlyError{Volume: root.Name(), Path: p.SubPath}
	}
	if err != nil {
		return err
	}
	defer file.Close()
	is, err := identify(file)
	if err != nil {
		return err
	}
	p.File = !is.dir
	if p.Source, err = nameOf(file); err != nil {
		return err
	}
	return checkName(p.Source, is)
}

// checkName fails unless a name leads to the file found: it may have gone since.
func checkName(name string, found fileIdentity) error {
	now, err := identifyAt(name)
	if err == nil && now != found {
		err = fmt.Errorf("%s was replaced while it was looked up; resolve again", name)
	}
	return err
}

func (d *directories) openSource(p *planned) (*os.File, error) { return openPlace(p.Source) }

func (d *directories) reach(ctx context.Context, path string, f func() error) error {
	return d.reaches.Do(ctx, path, f)
}
