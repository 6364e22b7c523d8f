package flexvolume

import (
	"context"
	"errors"
	"fmt"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/plugins/flexvolume/internal/driver"
)

// verbs are the calls of a driver for one kind of place.
type verbs struct{ mount, unmount string }

var (
	podVerbs    = verbs{"mount", "unmount"}
	deviceVerbs = verbs{"mountdevice", "unmountdevice"}
)

// mounted reports whether anything is mounted at a place.
func (p *plugin) mounted(at place) (bool, error) {
	_, mounted, err := table.Of(p.Host.GetMounter()).At(at.dir)
	return mounted, err
}

// isMounted reports whether a driver's mount is complete at a place, and returns its record.
func (p *plugin) isMounted(at place) (r record, is bool, err error) {
	r, _, err = at.read()
	if err != nil || !r.Mounted {
		return r, false, err
	}
	is, err = p.mounted(at)
	return r, is, err
}

// mount has a driver mount a volume at a place, where no complete mount is. What an interrupted
// call may have left is undone before. by makes the mount. The error of anything before it is
// marked by [volume.NothingDone].
func (p *plugin) mount(ctx context.Context, at place, v verbs, r *record, by func() error) error {
	old, known, err := at.read()
	if err == nil && known && !old.Mounted {
		err = driver.EndLeft(ctx, v.mount, at.dir)
	}
	if err != nil {
		return volume.NothingDone(err)
	}
	entry, mounted, err := table.Of(p.Host.GetMounter()).At(at.dir)
	switch {
	case err != nil:
		return volume.NothingDone(err)
	case mounted && !known:
		return volume.NothingDone(&podmount.OccupiedError{Want: "a volume of driver " + r.Source.Driver, Found: entry})
	case mounted:
		if err := p.unmount(ctx, at, v, &old); err != nil {
			return err
		}
	}
	if !known {
		old = record{}
	}
	r.Attached = old.Attached
	if err := p.prepare(at, r, known); err != nil {
		return err
	}
	if err := by(); err != nil {
		return err
	}
	if mounted, err = p.mounted(at); err != nil {
		return err
	}
	if !mounted {
		return &volume.Failure{Cause: ErrDriver, Subject: r.Source.Driver, Next: "see the driver's log",
			What: fmt.Sprintf("driver %s answered %s with Success, and nothing is mounted at %s", r.Source.Driver, v.mount, at.dir)}
	}
	r.Mounted = true
	return at.write(r)
}

// prepare makes a place's directories, and its record. If that fails, what was new is gone.
func (p *plugin) prepare(at place, r *record, known bool) error {
	err := at.write(r)
	if err == nil {
		_, err = podmount.MakeDir(at.dir, 0o750)
	}
	if err == nil || known {
		return err
	}
	if left := at.remove(); left != nil {
		return errors.Join(err, left)
	}
	return volume.NothingDone(err)
}

// unmount takes everything off a place: by the driver's call, and what that leaves, or cannot do,
// by the node's own. A driver that fails to unmount what is not mounted is right.
func (p *plugin) unmount(ctx context.Context, at place, v verbs, r *record) error {
	mounted, err := p.mounted(at)
	if err != nil {
		return err
	}
	d, err := p.drivers.Open(ctx, r.Source.Driver)
	if err == nil {
		_, err = d.Call(ctx, driver.Call{Verb: v.unmount, Args: []string{at.dir}, Key: at.dir})
	}
	gone := errors.Is(err, ErrNotInstalled) || errors.Is(err, driver.ErrNotSupported)
	if err != nil && !gone && (mounted || ctx.Err() != nil) {
		return err
	}
	return podmount.UnmountAll(ctx, p.Host.GetMounter(), at.dir, mount.UnmountOptions{})
}

// tearDown undoes mount and what the node has attached by itself, and removes the place. It
// succeeds if nothing is there. A volume without a record is unmounted by the node.
func (p *plugin) tearDown(ctx context.Context, at place, v verbs) error {
	r, known, err := at.read()
	if err == nil && known && !r.Mounted {
		err = driver.EndLeft(ctx, v.mount, at.dir)
	}
	if err != nil {
		return err
	}
	if known {
		err = p.unmount(ctx, at, v, &r)
	} else {
		err = podmount.UnmountAll(ctx, p.Host.GetMounter(), at.dir, mount.UnmountOptions{})
	}
	if err == nil && r.Attached != "" {
		err = p.detach(ctx, r.Source.Driver, r.Attached, p.Host.GetNodeName())
	}
	if err != nil {
		return err
	}
	return at.remove()
}
