package hostpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/sharedirs"
)

// made is where a volume was provisioned.
type made struct {
	dir   string // the class's, which has the bookkeeping
	path  string // the volume's, below that
	owner VolumeOwner
	node  string
}

// madeOf returns where a PersistentVolume says that it was provisioned; ok is false
// for those that were not.
func madeOf(pv *v1.PersistentVolume) (m made, ok bool) {
	if pv == nil || pv.Spec.HostPath == nil || !sharedirs.IsOf(pv, PluginName) {
		return made{}, false
	}
	m = made{dir: pv.Annotations[BaseAnnotation], owner: VolumeOwner{Volume: pv.Name}, node: pv.Annotations[NodeAnnotation]}
	if pv.Spec.ClaimRef != nil {
		m.owner.ClaimUID = pv.Spec.ClaimRef.UID
	}
	m.path, ok = pathin.Cut(m.dir, pv.Spec.HostPath.Path)
	return m, ok && filepath.IsAbs(m.dir)
}

// checkBook refuses a place whose bookkeeping is not there: most likely its disk is
// not mounted.
func (m made) checkBook(ctx context.Context, files volume.HostFiles) error {
	book := sharedirs.BookOf(m.dir)
	_, err := files.Stat(ctx, book)
	if errors.Is(err, fs.ErrNotExist) {
		return volume.NothingDone(&DirectoryError{Cause: ErrNoBook, Other: m.dir, Path: m.path, Owner: m.owner, On: sharedirs.Disk})
	}
	if err != nil {
		return volume.NothingDone(fmt.Errorf("look for the disk of %s: %w", m.dir, unanswered(book, err)))
	}
	return nil
}

// checkThere refuses a volume whose directory is not there. Another in its place
// would be empty.
func (m made) checkThere(ctx context.Context, files volume.HostFiles) error {
	path := filepath.Join(m.dir, m.path)
	if _, err := files.Stat(ctx, path); !errors.Is(err, fs.ErrNotExist) {
		return nil // it is there, or the next look fails
	}
	if err := m.checkBook(ctx, files); err != nil {
		return err
	}
	return volume.NothingDone(&DirectoryError{Cause: ErrLost, Path: path, Owner: m.owner, On: sharedirs.Disk})
}

// checkMounted refuses to make the first volume in a class's directory while a
// recorded one below the same base is missing: its disk may not be mounted, and
// would hide the new one later.
func (p *plugin) checkMounted(ctx context.Context, class *dirClass) error {
	volumes := p.config.Provision.Volumes
	if volumes == nil {
		return nil
	}
	_, err := p.files.Stat(ctx, sharedirs.BookOf(class.dir))
	if !errors.Is(err, fs.ErrNotExist) {
		return nil // it is there, or the next open fails
	}
	onRecord, err := volumes(ctx)
	if err != nil {
		return volume.NothingDone(fmt.Errorf("look for PersistentVolumes that were made below %s before: %w", class.base.Path, err))
	}
	for _, pv := range onRecord {
		m, ok := madeOf(pv)
		if _, here := pathin.Cut(filepath.Clean(class.base.Path), m.dir); !ok || !here || m.node != string(p.Host.GetNodeName()) {
			continue
		}
		if err := m.checkBook(ctx, &p.files); err != nil {
			return err
		}
	}
	return nil
}
