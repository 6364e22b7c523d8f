package hostpath

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/sharedirs"
)

func forgotten(path string, f sharedirs.Former) error {
	return &volume.Failure{
		Cause: ErrForgotten, Subject: path,
		What: fmt.Sprintf("the claim %s had a volume before: %s was made for %s, of which there is no record any more; it is kept, and the claim gets no new volume beside it", f.Claim, path, f.Owner),
		Next: "to use its data again, make a PersistentVolume with this hostPath.path and a claimRef to the claim; if nobody needs it, delete it or move it away",
	}
}

// formersOf returns the directories that were made for a claim in a class's directory,
// which is open, before this process made any: those it knows.
func (p *plugin) formersOf(ctx context.Context, root *os.File, dir, claim string) ([]sharedirs.Former, error) {
	if found, ok := p.formers.Load(dir); ok {
		return found.(map[string][]sharedirs.Former)[claim], nil
	}
	found, err := sharedirs.Formers(ctx, root)
	if err != nil {
		return nil, err
	}
	if found != nil { // else the bookkeeping of a disk may come yet
		p.formers.Store(dir, found)
	}
	return found[claim], nil
}

// checkForgotten refuses a claim whose former volume is forgotten.
func (p *plugin) checkForgotten(ctx context.Context, class *dirClass, root *os.File, w sharedirs.Wish) error {
	own, records := class.base.Own, p.config.Provision.Records
	if !own && records == "" || p.config.Provision.Volumes == nil {
		return nil
	}
	before, err := p.formersOf(ctx, root, class.dir, w.Claim)
	if err != nil {
		return volume.NothingDone(err)
	}
	for _, f := range before {
		if f.Owner == w.Owner {
			return nil // it is to be found again
		}
	}
	if !own {
		before = slices.DeleteFunc(slices.Clone(before), func(f sharedirs.Former) bool { return f.Records != records })
	}
	if len(before) == 0 {
		return nil
	}
	onRecord, err := p.config.Provision.Volumes(ctx)
	if err != nil {
		return volume.NothingDone(fmt.Errorf("look for PersistentVolume %q, which was made for an earlier claim %s: %w", before[0].Owner.Volume, w.Claim, err))
	}
	for _, f := range before {
		if slices.ContainsFunc(onRecord, func(pv *v1.PersistentVolume) bool { return pv.Name == f.Owner.Volume }) {
			continue
		}
		if remains, err := f.Remains(ctx, root); err != nil || remains {
			if err == nil {
				err = forgotten(filepath.Join(class.dir, f.Path), f)
			}
			return volume.NothingDone(err)
		}
	}
	return nil
}
