package iscsi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/diskmount"
	"github.com/podvol/podvol/volume/plugins/iscsi/internal/openiscsi"
)

// ErrAnotherDisk says that a volume's LUN is another disk than it was.
const ErrAnotherDisk volume.Cause = "the LUN is another disk than before"

// attach makes the disk of a volume appear on this node. Its caller has the target's lock.
type attach struct {
	plugin      *plugin
	source      *source
	name        string // the volume's
	file, place string // the record, and the directory of the volume

	isNew bool          // there was no record, so that nothing of the volume was here
	added openiscsi.LUN // by this attach
}

// login makes the disk appear, after it has noted that in the record.
func (a *attach) login(ctx context.Context, chap *openiscsi.CHAP) (openiscsi.Device, error) {
	before, _, err := readRecord(a.file, a.place)
	if err != nil {
		return openiscsi.Device{}, volume.NothingDone(err)
	}
	a.isNew = before.VolName == ""
	r := a.source.record(a.name)
	r.ID, r.Size = before.ID, before.Size
	if err := a.plugin.writeRecord(&r, a.file); err != nil {
		return openiscsi.Device{}, volume.NothingDone(err)
	}
	var found openiscsi.Device
	if found, a.added, err = a.plugin.initiator.Login(ctx, a.source.lun, chap); err != nil {
		return found, err
	}
	if err := r.check(found); err != nil {
		return found, err
	}
	if err := a.checkUnshared(ctx, found); err != nil {
		return found, err
	}
	r.ID, r.Size = found.ID, found.Size
	return found, a.plugin.writeRecord(&r, a.file)
}

// checkUnshared refuses a disk that something on this node has by another path: each path has
// a cache of its own. Of block volumes that only read there may be several.
func (a *attach) checkUnshared(ctx context.Context, found openiscsi.Device) error {
	path, user, readers, err := a.otherBlockVolumes(ctx, found)
	if err == nil && user == "" {
		path, user, err = a.plugin.initiator.UsedElsewhere(ctx, found, func(device string) (string, error) {
			return a.plugin.usedBy(device, readers...)
		})
	}
	if err != nil || user == "" {
		return err
	}
	subject := a.source.volumeName()
	return &volume.Failure{Cause: volume.ErrInUse, Subject: subject, What: fmt.Sprintf("the disk of %s is in use on this node as %s already, not as %s: %s", subject, path, found.Path, user),
		Next: "name the same portals and the same interface in all volumes of the disk, or run multipathd"}
}

// otherBlockVolumes returns a block volume of the same disk that is staged by another path, which
// the kernel does not know of before a pod has it. readers has the directories of those that are
// no harm. A record of another target that says nothing keeps no volume from its pod: the kernel
// knows of the pods that have that disk.
func (a *attach) otherBlockVolumes(ctx context.Context, found openiscsi.Device) (path, user string, readers []string, err error) {
	if found.ID == "" {
		return "", "", nil, nil
	}
	places, err := placesIn(a.plugin.blockDir())
	if err != nil {
		return "", "", nil, err
	}
	for _, at := range places {
		dir, isRecord := strings.CutSuffix(at, "."+recordName)
		if !isRecord || at == a.file {
			continue
		}
		other, r, err := a.plugin.staged(ctx, at)
		of, known := parsePath(dir)
		switch {
		case err != nil && known && of.iqn != a.source.IQN:
		case err != nil:
			return "", "", nil, err
		case other.ID != found.ID || other.Path == found.Path:
		case a.source.deviceReadOnly && r.ReadOnly:
			readers = append(readers, dir)
		default:
			return other.Path, fmt.Sprintf("block volume %q has it (%s)", r.VolName, dir), nil, nil
		}
	}
	return "", "", readers, nil
}

// staged is the disk of a record, if it is there.
func (p *plugin) staged(ctx context.Context, file string) (d openiscsi.Device, r record, err error) {
	r, ok, err := readRecord(file, strings.TrimSuffix(file, "."+recordName))
	if err != nil || !ok {
		return d, r, err
	}
	lun, err := r.lunOf()
	if err != nil {
		return d, r, fmt.Errorf("%s: %w", file, err)
	}
	d, err = p.initiator.Find(ctx, lun)
	if errors.Is(err, openiscsi.ErrNoDisk) {
		err = nil
	}
	return d, r, err
}

// usedBy says what has the node of a device, below whichever root directory, other than what has
// it below one of some directories.
func (p *plugin) usedBy(device string, except ...string) (user string, err error) {
	var st unix.Stat_t
	err = eintr.Do(func() error { return unix.Stat(device, &st) })
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", &fs.PathError{Op: "stat", Path: device, Err: err}
	}
	nodes, err := table.NodesOf(table.Of(p.Host.GetMounter()), uint64(st.Rdev))
	for _, e := range nodes {
		if !slices.ContainsFunc(except, func(dir string) bool { return pathin.Strictly(dir, e.Target) }) {
			return "a block volume has it at " + e.Target, err
		}
	}
	return "", err
}

// mount mounts the disk that login has found. Others may take it away meanwhile, and its name is
// given to the next disk once nothing has it open. So its identity is looked at again while this
// has, which lasts until the file system is mounted.
func (a *attach) mount(ctx context.Context, found openiscsi.Device, args volume.DeviceMounterArgs) error {
	held, err := a.plugin.hold(ctx, found.Path)
	if err != nil {
		return err
	}
	defer held.Close()
	now, err := a.plugin.initiator.Find(ctx, a.source.lun)
	if err == nil && (now.Path != found.Path || now.ID != found.ID) {
		err = &volume.Failure{Cause: ErrAnotherDisk, Subject: a.source.volumeName(), Next: "it is tried again; nothing was written",
			What: fmt.Sprintf("%s was disk %q at %s, and is disk %q at %s now", a.source.volumeName(), found.ID, found.Path, now.ID, now.Path)}
	}
	if err != nil {
		return err
	}
	return a.plugin.disks.Mount(ctx, a.plugin.Host.GetMounter(), a.source.mountRequest(found.Path, a.place, a.source.options), args.SELinuxLabel, args.Progress)
}

// hold opens a disk, which may take as long as its target likes.
func (p *plugin) hold(ctx context.Context, path string) (*os.File, error) {
	var mu sync.Mutex
	var held *os.File
	isLate := false
	err := p.opening.Do(ctx, path, func() error {
		opened, err := os.Open(path)
		mu.Lock()
		defer mu.Unlock()
		if isLate {
			opened.Close()
			return err
		}
		held = opened
		return err
	})
	mu.Lock()
	defer mu.Unlock()
	if err != nil {
		isLate = true
		held.Close()
		return nil, err
	}
	return held, nil
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

// undo gives back what this attach has added, after it has failed, and no more: an earlier one
// may serve a pod. before is called first.
//
//   - The record of an earlier attach is kept, with the identity of its disk.
//   - It is kept as well where a context has ended, since the daemon may still open a session.
//   - The error is marked where nothing was left and nothing goes on. Else it is uncertain, and
//     the volume is torn down in the end.
func (a *attach) undo(ctx context.Context, failure error, before func(context.Context) error, removePlace func(string) error) error {
	if errors.Is(failure, context.Canceled) || errors.Is(failure, context.DeadlineExceeded) {
		return failure
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	err := before(ctx)
	if err == nil && len(a.added.Portals) > 0 {
		err = a.plugin.initiator.Logout(ctx, a.added)
	}
	if err == nil && a.isNew {
		if err = a.plugin.removeRecord(a.file); err == nil {
			err = removePlace(a.place)
		}
	}
	if err != nil {
		return errors.Join(failure, fmt.Errorf("cleaning up after it failed: %w", err))
	}
	if !a.isNew {
		return failure
	}
	return diskmount.Certain(failure)
}

// logout gives a disk back and removes its record. Of a disk that another volume has, too, the
// paths stay that are in use or may be: a block volume, or a file system, which isShared says.
func (p *plugin) logout(ctx context.Context, file, place string, isShared bool) error {
	r, ok, err := readRecord(file, place)
	if err != nil || !ok {
		return err
	}
	lun, err := r.lunOf()
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	others, err := p.placesOf(r.Iqn, r.Lun, file)
	if err != nil {
		return err
	}
	for _, at := range others {
		isShared = isShared || strings.HasSuffix(at, "."+recordName)
		if err := leavePaths(&lun, at); err != nil {
			return err
		}
	}
	if len(lun.Portals) > 0 {
		err := p.initiator.Logout(ctx, lun)
		if err != nil && (!isShared || !errors.Is(err, volume.ErrInUse)) {
			return err
		}
	}
	return p.removeRecord(file)
}

// leavePaths takes from a LUN the portals by which the block volume at a place has it. Of a
// place where a file system is mounted the kernel knows.
func leavePaths(lun *openiscsi.LUN, place string) error {
	dir, isRecord := strings.CutSuffix(place, "."+recordName)
	if !isRecord {
		return nil
	}
	r, ok, err := readRecord(place, dir)
	if err != nil || !ok {
		return err
	}
	other, err := r.lunOf()
	if err != nil {
		return fmt.Errorf("%s: %w", place, err)
	}
	if other.Interface.Name == lun.Interface.Name {
		lun.Portals = slices.DeleteFunc(lun.Portals, func(p openiscsi.Portal) bool { return slices.Contains(other.Portals, p) })
	}
	return nil
}
