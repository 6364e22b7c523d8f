package volumemanager_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	k8smount "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount"
)

// kubeletMethod sets volumes up and tears them down by the steps of the kubelet's plugins, one
// after the other: its own look at each mount point, mount-utils' calls, its marker files, its
// way to publish files. It has neither records, nor waiting calls, nor the kubelet's reconciler
// and caches, so that it costs less than a kubelet.
type kubeletMethod struct {
	tb      testing.TB
	root    string
	mounter mount.Interface
	files   map[string]string // of each configMap and secret
}

func (k kubeletMethod) must(err error) {
	k.tb.Helper()
	if err != nil {
		k.tb.Fatal(err)
	}
}

func (k kubeletMethod) dir(p *v1.Pod, plugin, volume string) string {
	return filepath.Join(k.root, "pods", string(p.UID), "volumes", "kubernetes.io~"+plugin, volume)
}

// metaDir is where the marker of an emptyDir is.
func (k kubeletMethod) metaDir(p *v1.Pod, volume string) string {
	return filepath.Join(k.root, "pods", string(p.UID), "plugins", "kubernetes.io~empty-dir", volume)
}

func (k kubeletMethod) setUp(p *v1.Pod) {
	k.tb.Helper()
	for _, v := range p.Spec.Volumes {
		switch {
		case v.NFS != nil:
			k.setUpNFS(k.dir(p, "nfs", v.Name), v.NFS)
		case v.EmptyDir != nil:
			k.setUpEmptyDir(k.dir(p, "empty-dir", v.Name), k.metaDir(p, v.Name), v.EmptyDir.Medium)
		case v.ConfigMap != nil:
			k.setUpFiles(p, "configmap", v.Name, v1.StorageMediumDefault)
		case v.Secret != nil:
			k.setUpFiles(p, "secret", v.Name, v1.StorageMediumMemory)
		}
	}
}

func (k kubeletMethod) setUpNFS(dir string, source *v1.NFSVolumeSource) {
	if _, err := k.mounter.IsLikelyNotMountPoint(dir); !errors.Is(err, os.ErrNotExist) {
		k.must(err)
	}
	k.must(os.MkdirAll(dir, 0o750))
	k.must(k.mounter.MountSensitiveWithoutSystemd(source.Server+":"+source.Path, dir, "nfs", nil, nil))
}

func (k kubeletMethod) setUpEmptyDir(dir, meta string, medium v1.StorageMedium) {
	if _, err := k.mounter.IsLikelyNotMountPoint(dir); !errors.Is(err, os.ErrNotExist) {
		k.must(err)
	}
	ready := filepath.Join(meta, "ready")
	if _, err := os.Stat(ready); !errors.Is(err, os.ErrNotExist) {
		k.must(err)
	}
	k.must(os.MkdirAll(dir, 0o777))
	_, err := os.Lstat(dir)
	k.must(err)
	k.must(os.Chmod(dir, 0o777))
	if medium == v1.StorageMediumMemory {
		k.medium(dir)
		k.must(k.mounter.MountSensitiveWithoutSystemd("tmpfs", dir, "tmpfs", []string{"noswap"}, nil))
	}
	k.must(os.MkdirAll(meta, 0o750))
	marker, err := os.Create(ready)
	k.must(err)
	k.must(marker.Close())
}

// medium looks at the file system of a directory, and whether it is a mount point.
func (k kubeletMethod) medium(dir string) (inMemory bool) {
	var st unix.Statfs_t
	k.must(unix.Statfs(dir, &st))
	not, err := k.mounter.IsLikelyNotMountPoint(dir)
	k.must(err)
	return !not
}

// setUpFiles publishes files in a directory of their own beside what names it.
func (k kubeletMethod) setUpFiles(p *v1.Pod, plugin, volume string, medium v1.StorageMedium) {
	dir := k.dir(p, plugin, volume)
	k.setUpEmptyDir(dir, k.metaDir(p, "wrapped_"+volume), medium)
	if _, err := os.Readlink(filepath.Join(dir, "..data")); !errors.Is(err, os.ErrNotExist) {
		k.must(err)
	}
	now, err := os.MkdirTemp(dir, time.Now().UTC().Format("..2006_01_02_15_04_05."))
	k.must(err)
	k.must(os.Chmod(now, 0o755))
	for name, data := range k.files {
		path := filepath.Join(now, name)
		k.must(os.MkdirAll(filepath.Dir(path), 0o755))
		k.must(os.WriteFile(path, []byte(data), 0o644))
		k.must(os.Chmod(path, 0o644)) // whatever the umask is
	}
	next := filepath.Join(dir, "..data_tmp")
	k.must(os.Symlink(filepath.Base(now), next))
	k.must(os.Rename(next, filepath.Join(dir, "..data")))
	for name := range k.files {
		if _, err := os.Readlink(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			k.must(err)
		}
		k.must(os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)))
	}
	k.must(filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error { // its look for an fsGroup's files
		if err == nil {
			_, err = os.Lstat(path)
		}
		return err
	}))
}

func (k kubeletMethod) tearDown(p *v1.Pod) {
	k.tb.Helper()
	for _, v := range p.Spec.Volumes {
		switch {
		case v.NFS != nil:
			k.must(k8smount.CleanupMountPoint(k.dir(p, "nfs", v.Name), k.mounter, false))
		case v.EmptyDir != nil:
			k.tearDownEmptyDir(k.dir(p, "empty-dir", v.Name), k.metaDir(p, v.Name))
		case v.ConfigMap != nil:
			k.tearDownEmptyDir(k.dir(p, "configmap", v.Name), k.metaDir(p, "wrapped_"+v.Name))
		case v.Secret != nil:
			k.tearDownEmptyDir(k.dir(p, "secret", v.Name), k.metaDir(p, "wrapped_"+v.Name))
		}
	}
	k.removePod(filepath.Join(k.root, "pods", string(p.UID)))
}

func (k kubeletMethod) tearDownEmptyDir(dir, meta string) {
	_, err := k8smount.PathExists(dir)
	k.must(err)
	if k.medium(dir) {
		k.must(k.mounter.Unmount(dir))
		k.must(os.RemoveAll(dir))
	} else {
		doomed := filepath.Join(filepath.Dir(dir), "deleting~"+filepath.Base(dir))
		k.must(os.Rename(dir, doomed))
		k.must(os.RemoveAll(doomed))
	}
	k.must(os.RemoveAll(meta))
}

// removePod is the clean-up of a pod without volumes: it looks at each plugin's directory, and
// removes what is empty.
func (k kubeletMethod) removePod(dir string) {
	for _, sub := range []string{"volumes", "plugins"} {
		plugins, err := os.ReadDir(filepath.Join(dir, sub))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		k.must(err)
		for _, plugin := range plugins {
			path := filepath.Join(dir, sub, plugin.Name())
			left, err := os.ReadDir(path)
			k.must(err)
			if len(left) > 0 {
				k.tb.Fatalf("%s has %v", path, left)
			}
			k.must(os.Remove(path))
		}
		k.must(os.Remove(filepath.Join(dir, sub)))
	}
	k.must(os.Remove(dir))
}

// memoryMounter is a mounter as another module may have it: it knows neither contexts nor
// tables, mounts nothing, and each of its calls takes the same time however many mounts there
// are.
type memoryMounter struct {
	mu     sync.Mutex
	mounts map[string]k8smount.MountPoint
}

var _ mount.Interface = (*memoryMounter)(nil)

func (m *memoryMounter) Mount(source, target, fstype string, options []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mounts == nil {
		m.mounts = make(map[string]k8smount.MountPoint)
	}
	m.mounts[target] = k8smount.MountPoint{Device: source, Path: target, Type: fstype, Opts: options}
	return nil
}

func (m *memoryMounter) MountSensitive(source, target, fstype string, options, _ []string) error {
	return m.Mount(source, target, fstype, options)
}

func (m *memoryMounter) MountSensitiveWithoutSystemd(source, target, fstype string, options, _ []string) error {
	return m.Mount(source, target, fstype, options)
}

func (m *memoryMounter) MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype string, options, _, _ []string) error {
	return m.Mount(source, target, fstype, options)
}

func (m *memoryMounter) Unmount(target string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mounts, target)
	return nil
}

func (m *memoryMounter) List() (all []k8smount.MountPoint, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.mounts {
		all = append(all, p)
	}
	return all, nil
}

func (m *memoryMounter) IsMountPoint(file string) (bool, error) {
	if _, err := os.Stat(file); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	_, mounted := m.mounts[file]
	return mounted, nil
}

func (m *memoryMounter) IsLikelyNotMountPoint(file string) (bool, error) {
	mounted, err := m.IsMountPoint(file)
	return !mounted, err
}

func (m *memoryMounter) GetMountRefs(path string) ([]string, error) {
	return nil, fmt.Errorf("no refs of %s", strings.TrimSpace(path))
}

func (*memoryMounter) CanSafelySkipMountPointCheck() bool { return false }
