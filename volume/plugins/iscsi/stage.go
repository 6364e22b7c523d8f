package iscsi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/diskmount"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/plugins/iscsi/internal/openiscsi"
)

// CanDeviceMount reports whether the volume is a file system.
func (p *plugin) CanDeviceMount(spec *volume.Spec) (bool, error) {
	if _, err := p.checked(spec); err != nil {
		return false, err
	}
	return !spec.IsBlock(), nil
}

func (p *plugin) NewDeviceMounter() (volume.DeviceMounter, error) { return &device{p}, nil }

func (p *plugin) NewDeviceUnmounter() (volume.DeviceUnmounter, error) { return &device{p}, nil }

// GetDeviceMountRefs implements [volume.DeviceMountableVolumePlugin].
func (p *plugin) GetDeviceMountRefs(deviceMountPath string) ([]string, error) {
	return diskmount.Refs(p.Host.GetMounter(), deviceMountPath)
}

// device logs in, and mounts file systems.
type device struct{ plugin *plugin }

func (d *device) GetDeviceMountPath(spec *volume.Spec) (string, error) {
	s, err := d.plugin.checked(spec)
	if err != nil {
		return "", err
	}
	return d.plugin.devicePath(s), nil
}

// MountDevice logs in, unless there are sessions, and mounts the file system of the disk; a
// blank disk is given one before, as package format says. An inline volume that logs in by a
// secret of its pod's is mounted by the pod's own SetUp.
func (d *device) MountDevice(ctx context.Context, spec *volume.Spec, _, deviceMountPath string, args volume.DeviceMounterArgs) error {
	s, err := d.plugin.checked(spec)
	if err == nil && !s.waitsForPod() {
		err = d.plugin.mountDevice(ctx, s, spec.Name(), deviceMountPath, "", args)
	}
	return failed("MountDevice", spec.Name(), err)
}

// waitsForPod reports whether the device can only be mounted for a certain pod, whose
// namespace has the secret.
func (s *source) waitsForPod() bool { return s.inline && s.SessionCHAPAuth }

func (p *plugin) mountDevice(ctx context.Context, s *source, name, path, podNamespace string, args volume.DeviceMounterArgs) error {
	unlock, err := p.lockTarget(ctx, s.IQN)
	if err != nil {
		return err
	}
	defer unlock()
	if mounted, err := diskmount.IsMounted(p.Host.GetMounter(), path); err != nil || mounted {
		return err
	}
	chap, err := p.chap(ctx, s, podNamespace)
	if err != nil {
		return volume.NothingDone(err)
	}
	if _, err := podmount.MakeDir(path, 0o750); err != nil {
		return volume.NothingDone(err)
	}
	a := &attach{plugin: p, source: s, name: name, file: filepath.Join(path, recordName), place: path}
	found, err := a.login(ctx, chap)
	if err == nil {
		err = a.mount(ctx, found, args)
	}
	if err == nil {
		return nil
	}
	return a.undo(ctx, err, func(ctx context.Context) error {
		return podmount.UnmountAll(ctx, p.Host.GetMounter(), path, mount.UnmountOptions{})
	}, p.removePlace)
}

// UnmountDevice unmounts the file system, never by force, and then gives the disk back: it is
// flushed and removed, and the last disk of a session closes that. It succeeds if nothing is
// there. A disk in use stays: the error matches [volume.ErrInUse].
func (d *device) UnmountDevice(ctx context.Context, deviceMountPath string) error {
	return failed("UnmountDevice", filepath.Base(deviceMountPath), d.plugin.unmountDevice(ctx, deviceMountPath))
}

func (p *plugin) unmountDevice(ctx context.Context, path string) error {
	of, ok := parsePath(path)
	if !ok {
		return volume.Invalid("deviceMountPath", "%q is not where this plugin mounts", path)
	}
	unlock, err := p.lockTarget(ctx, of.iqn)
	if err != nil {
		return err
	}
	defer unlock()
	file := filepath.Join(path, recordName)
	isShared, err := p.checkUnused(of, file, path)
	if err != nil {
		return volume.NothingDone(err)
	}
	return p.unstage(ctx, file, path, isShared)
}

// checkUnused refuses while a pod has the file system, unless that may be by another volume
// that has the same file system mounted. A directory with the right name is none: a user who
// names this target in a volume of a pod has that, whatever portal the user names.
func (p *plugin) checkUnused(of named, file, path string) (isShared bool, err error) {
	refs, err := p.GetDeviceMountRefs(path)
	if err != nil || len(refs) == 0 {
		return false, err
	}
	others, err := p.placesOf(of.iqn, strconv.Itoa(of.lun), file)
	if err != nil {
		return false, err
	}
	if !slices.ContainsFunc(refs, func(ref string) bool { return slices.Contains(others, ref) }) {
		return false, fmt.Errorf("the disk is mounted at %s, too: %w", refs[0], volume.ErrInUse)
	}
	return true, nil
}

// unstage undoes mountDevice. The caller has the target's lock.
func (p *plugin) unstage(ctx context.Context, file, path string, isShared bool) error {
	if err := podmount.UnmountAll(ctx, p.Host.GetMounter(), path, mount.UnmountOptions{}); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is no directory: %w", path, unix.ENOTDIR)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := p.logout(ctx, file, path, isShared); err != nil { // without a record, what the path names
		return err
	}
	return p.removePlace(path)
}

// removePlace removes a device's directory, and those above it that hold nothing else.
func (p *plugin) removePlace(path string) error {
	if err := podmount.RemoveDir(path); err != nil {
		return err
	}
	return p.removeParents(path)
}

func (p *plugin) removeParents(path string) error {
	top := filepath.Dir(filepath.Dir(p.Host.GetPluginDir(PluginName))) // of all plugins
	for dir := filepath.Dir(path); pathin.Strictly(top, dir); dir = filepath.Dir(dir) {
		err := podmount.RemoveDir(dir)
		if _, used := errors.AsType[*podmount.NotEmptyError](err); used {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// chap reads the secret of a volume; nil: it needs none.
func (p *plugin) chap(ctx context.Context, s *source, podNamespace string) (*openiscsi.CHAP, error) {
	if !s.SessionCHAPAuth {
		return nil, nil
	}
	secrets, err := volume.Role[volume.SecretGetter](p.Host)
	if err != nil {
		return nil, err
	}
	namespace := s.secretNamespace
	if s.inline {
		namespace = podNamespace
	}
	if namespace == "" {
		return nil, volume.Invalid("iscsi.secretRef.namespace", "is missing")
	}
	secret, err := secrets.GetSecret(ctx, namespace, s.SecretRef.Name)
	if err != nil {
		return nil, fmt.Errorf("the secret of the target's login: %w", err)
	}
	return chapOf(secret)
}

const (
	keyPrefix = "node.session.auth."
	maxCHAP   = 255 // of open-iscsi
)

// chapOf takes from a secret what the kubelet takes. The errors have no values.
func chapOf(secret *v1.Secret) (*openiscsi.CHAP, error) {
	var c openiscsi.CHAP
	for key, to := range map[string]*string{"username": &c.Username, "password": &c.Password, "username_in": &c.UsernameIn, "password_in": &c.PasswordIn} {
		value := string(secret.Data[keyPrefix+key])
		if !isCHAPText(value) {
			return nil, volume.Invalid("iscsi.secretRef", "names secret %s/%s, whose %s%s is longer than %d bytes, begins or ends with a blank, or has a control character", secret.Namespace, secret.Name, keyPrefix, key, maxCHAP)
		}
		*to = value
	}
	if c.Username == "" || c.Password == "" {
		return nil, volume.Invalid("iscsi.secretRef", "names secret %s/%s, which lacks %susername or %spassword", secret.Namespace, secret.Name, keyPrefix, keyPrefix)
	}
	return &c, nil
}

// isCHAPText reports whether a line of open-iscsi's records can hold a value.
func isCHAPText(s string) bool {
	return len(s) <= maxCHAP && strings.TrimSpace(s) == s && !strings.ContainsFunc(s, unicode.IsControl)
}
