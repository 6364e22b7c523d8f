package iscsi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/plugins/iscsi/internal/openiscsi"
)

// ErrAnotherDisk says that a volume's LUN is another disk than it was.
const ErrAnotherDisk volume.Cause = "the LUN is another disk than before"

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
func (p *plugin) GetDeviceMountRefs(deviceMountPath string) (refs []string, err error) {
	mounts := table.Of(p.Host.GetMounter())
	own, mounted, err := mounts.At(deviceMountPath)
	if err != nil || !mounted {
		return nil, err
	}
	all, err := mounts.ByDevice(own.Device)
	for _, e := range all {
		if e.Target != own.Target && pathin.In(own.Root, e.Root) {
			refs = append(refs, e.Target)
		}
	}
	return refs, err
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
		err = d.plugin.mountDevice(ctx, s, spec.Name(), deviceMountPath, "", args.Progress)
	}
	return failed("MountDevice", spec.Name(), err)
}

// waitsForPod reports whether the device can only be mounted for a certain pod, whose
// namespace has the secret.
func (s *source) waitsForPod() bool { return s.inline && s.SessionCHAPAuth }

func (p *plugin) mountDevice(ctx context.Context, s *source, name, path, podNamespace string, progress func(volume.Progress)) error {
	unlock, err := p.targets.Lock(ctx, s.IQN)
	if err != nil {
		return volume.NothingDone(fmt.Errorf("another volume of target %s is being mounted or unmounted: %w", s.IQN, err))
	}
	defer unlock()
	request := s.mountRequest("", path, s.options)
	if mounted, err := podmount.Mounted(p.Host.GetMounter(), request, func(mount.Entry) bool { return true }); err != nil || mounted {
		return err
	}
	chap, err := p.chap(ctx, s, podNamespace)
	if err != nil {
		return volume.NothingDone(err)
	}
	if _, err := podmount.MakeDir(path, 0o750); err != nil {
		return volume.NothingDone(err)
	}
	file := filepath.Join(path, recordName)
	found, err := p.login(ctx, s, name, file, path, chap)
	if err == nil {
		request.Source = found.Path
		r := format.Request{Request: request}
		if progress != nil {
			r.Progress = func(doing string) { progress(volume.Progress{Doing: doing}) }
		}
		_, err = p.formatter().FormatAndMount(ctx, r)
	}
	if err == nil {
		return nil
	}
	return p.undo(ctx, err, func(ctx context.Context) error { return p.unstage(ctx, file, path) })
}

// login makes the disk appear, after it has noted that in the record. The caller has the
// target's lock.
func (p *plugin) login(ctx context.Context, s *source, name, file, place string, chap *openiscsi.CHAP) (openiscsi.Device, error) {
	before, _, err := readRecord(file, place)
	if err != nil {
		return openiscsi.Device{}, volume.NothingDone(err)
	}
	r := s.record(name)
	r.ID, r.Size = before.ID, before.Size
	if err := r.write(file); err != nil {
		return openiscsi.Device{}, volume.NothingDone(err)
	}
	found, err := p.initiator.Login(ctx, s.lun, chap)
	if err != nil {
		return found, err
	}
	if err := r.check(found); err != nil {
		return found, err
	}
	used, err := p.initiator.UsedElsewhere(ctx, found)
	if err == nil && used != "" {
		err = &volume.Failure{Cause: volume.ErrInUse, Subject: s.volumeName(), What: fmt.Sprintf("the disk of %s is in use on this node as %s already, not as %s", s.volumeName(), used, found.Path),
			Next: "name the same portals and the same interface in all volumes of the disk, or run multipathd"}
	}
	if err != nil {
		return found, err
	}
	r.ID, r.Size = found.ID, found.Size
	return found, r.write(file)
}

// check refuses another disk than the record's, and one that has shrunk.
func (r *record) check(d openiscsi.Device) error {
	f := &volume.Failure{Cause: ErrAnotherDisk, Subject: r.Iqn, Next: "find out what became of the disk on the target; nothing was written to this one"}
	switch {
	case r.ID != d.ID && r.ID != "":
		f.What = fmt.Sprintf("LUN %s of target %s is disk %q, and was disk %q when it was mounted here", r.Lun, r.Iqn, d.ID, r.ID)
	case d.Size < r.Size:
		f.What = fmt.Sprintf("LUN %s of target %s has %d bytes, and had %d when it was mounted here", r.Lun, r.Iqn, d.Size, r.Size)
	default:
		return nil
	}
	return f
}

const undoTimeout = 20 * time.Second

// undo cleans up after a failure. The error is marked where nothing was left and nothing goes
// on. The record is kept of a disk that is another one now, so that the next attempt finds
// that, too; and where a context has ended, since the daemon may still open a session, which
// [device.UnmountDevice] closes.
func (p *plugin) undo(ctx context.Context, failure error, cleanUp func(context.Context) error) error {
	if errors.Is(failure, ErrAnotherDisk) || errors.Is(failure, context.Canceled) || errors.Is(failure, context.DeadlineExceeded) {
		return failure
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if err := cleanUp(ctx); err != nil {
		return errors.Join(failure, fmt.Errorf("cleaning up after it failed: %w", err))
	}
	if e, ok := errors.AsType[*format.Error](failure); ok && e.Uncertain {
		return failure
	}
	if e, ok := errors.AsType[*mount.Error](failure); ok && e.Uncertain {
		return failure
	}
	return volume.NothingDone(failure)
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
	unlock, err := p.targets.Lock(ctx, of.iqn)
	if err != nil {
		return fmt.Errorf("another volume of target %s is being mounted or unmounted: %w", of.iqn, err)
	}
	defer unlock()
	file := filepath.Join(path, recordName)
	if err := p.checkUnused(of, file, path); err != nil {
		return volume.NothingDone(err)
	}
	return p.unstage(ctx, file, path)
}

// checkUnused refuses while a pod has the file system, unless that may be by another volume
// of the same disk.
func (p *plugin) checkUnused(of named, file, path string) error {
	refs, err := p.GetDeviceMountRefs(path)
	if err != nil || len(refs) == 0 {
		return err
	}
	elsewhere, err := p.isStagedElsewhere(of.iqn, strconv.Itoa(of.lun), file)
	if err == nil && !elsewhere {
		err = fmt.Errorf("the disk is mounted at %s, too: %w", refs[0], volume.ErrInUse)
	}
	return err
}

// unstage undoes mountDevice. The caller has the target's lock.
func (p *plugin) unstage(ctx context.Context, file, path string) error {
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
	if err := p.logout(ctx, file, path); err != nil { // without a record, what the path names
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

// logout gives a disk back and removes its record.
func (p *plugin) logout(ctx context.Context, file, place string) error {
	r, ok, err := readRecord(file, place)
	if err != nil || !ok {
		return err
	}
	lun, err := r.lunOf()
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	elsewhere, err := p.isStagedElsewhere(r.Iqn, r.Lun, file)
	if err != nil {
		return err
	}
	if !elsewhere {
		if err := p.initiator.Logout(ctx, lun); err != nil {
			return err
		}
	}
	if err := durable.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
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
