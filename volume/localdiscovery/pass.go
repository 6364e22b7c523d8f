package localdiscovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/localdisk"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/validation"
)

const kindVolume = "PersistentVolume"

// passes is what passes leave for each other.
type passes struct {
	running keylock.Map[struct{}]

	mu    sync.Mutex
	stuck map[string]bool // calls that did not answer in time
	told  map[string]string
	wake  func() // a call has ended that was given up; nil: no call waits
}

func (p *passes) isStuck(key string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stuck[key]
}

func (p *passes) stuckAt(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stuck == nil {
		p.stuck = make(map[string]bool)
	}
	p.stuck[key] = true
}

func (p *passes) answered(key string) {
	p.mu.Lock()
	stuck, wake := p.stuck[key], p.wake
	delete(p.stuck, key)
	p.mu.Unlock()
	if stuck && wake != nil {
		wake()
	}
}

func (p *passes) setWake(wake func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wake = wake
}

// tell reports whether something new is to be said of a path.
func (p *passes) tell(path, what string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.told == nil {
		p.told = make(map[string]string)
	}
	if p.told[path] == what {
		return false
	}
	p.told[path] = what
	return true
}

// pass is one look at everything.
type pass struct {
	*Discoverer
	write   bool
	classes []Class
	things  []*thing
	// volumes are the node's, by name.
	volumes map[string]*v1.PersistentVolume
	// at are those whose disk is at its path.
	at map[string]*thing
}

func (d *Discoverer) pass(ctx context.Context, write bool) ([]Found, error) {
	p, err := d.newPass(ctx, write)
	if p == nil {
		return nil, err
	}
	errs := []error{err}
	found := p.found()
	for _, f := range found {
		if f.State == StateFailed {
			errs = append(errs, f.Err)
		}
		if write {
			d.tell(f)
		}
	}
	return found, errors.Join(errs...)
}

// found returns the result, by path.
func (p *pass) found() []Found {
	found := make([]Found, 0, len(p.things))
	for _, t := range p.things {
		if errors.Is(t.Err, ErrNoVolume) && t.State == StateRefused && p.isMissing(t.Path) {
			continue // its volume says as much
		}
		found = append(found, t.Found)
	}
	slices.SortStableFunc(found, func(a, b Found) int { return strings.Compare(a.Path, b.Path) })
	return found
}

// isMissing reports whether a volume that is missing has this path.
func (p *pass) isMissing(path string) bool {
	return slices.ContainsFunc(p.things, func(t *thing) bool { return t.State == StateMissing && t.Path == path })
}

// newPass does all that a pass does. It returns nil beside an error that has kept
// it from everything.
func (d *Discoverer) newPass(ctx context.Context, write bool) (*pass, error) {
	classes, err := d.check()
	if err != nil {
		return nil, err
	}
	unlock, err := d.passes.running.Lock(ctx, struct{}{})
	if err != nil {
		return nil, err
	}
	defer unlock()
	p := &pass{Discoverer: d, write: write, classes: classes, at: make(map[string]*thing)}
	// First the volumes: one that is made in between is found when its name is
	// taken, one that is deleted is one to offer the next time.
	if err := p.readVolumes(ctx); err != nil {
		return nil, err
	}
	things, lookErr := d.look(ctx, classes)
	p.things = things
	p.decide(ctx)
	if lookErr != nil { // an unseen disk is not missing
		return p, lookErr
	}
	return p, p.findMissing(ctx)
}

// check returns the classes with their defaults.
func (d *Discoverer) check() ([]Class, error) {
	classes := slices.Clone(d.Classes)
	if len(classes) == 0 {
		classes = []Class{{}}
	}
	if d.NodeName == "" {
		return nil, volume.Invalid("NodeName", "is needed; the volumes are pinned to the node")
	}
	for i := range classes {
		c := &classes[i]
		if c.Dir == "" {
			c.Dir = DefaultDir
		}
		if err := validation.CheckAbsolutePath("Classes.Dir", c.Dir); err != nil {
			return nil, err
		}
		c.Dir = filepath.Clean(c.Dir)
		switch c.ReclaimPolicy {
		case "":
			c.ReclaimPolicy = v1.PersistentVolumeReclaimRetain
		case v1.PersistentVolumeReclaimRetain, v1.PersistentVolumeReclaimDelete:
		default:
			return nil, volume.Invalid("Classes.ReclaimPolicy", "is %q; local volumes are kept, %s, or cleaned, %s", c.ReclaimPolicy, v1.PersistentVolumeReclaimRetain, v1.PersistentVolumeReclaimDelete)
		}
		switch c.VolumeMode {
		case "", v1.PersistentVolumeBlock, v1.PersistentVolumeFilesystem:
		default:
			return nil, volume.Invalid("Classes.VolumeMode", "is %q, neither %s nor %s", c.VolumeMode, v1.PersistentVolumeFilesystem, v1.PersistentVolumeBlock)
		}
		for pattern := range strings.SplitSeq(c.NamePattern, ",") {
			if _, err := path.Match(strings.TrimSpace(pattern), ""); err != nil {
				return nil, volume.Invalid("Classes.NamePattern", "%q: %v", pattern, err)
			}
		}
	}
	return classes, nil
}

// readVolumes reads the local volumes of this node, also those that others have made.
func (p *pass) readVolumes(ctx context.Context) error {
	all, err := objects.List[*v1.PersistentVolume](ctx, p.Objects, kindVolume, metav1.NamespaceAll)
	if err != nil {
		return fmt.Errorf("list the PersistentVolumes: %w", err)
	}
	p.volumes = make(map[string]*v1.PersistentVolume)
	for _, pv := range all {
		if pv.Spec.Local != nil && p.isHere(pv) {
			p.volumes[pv.Name] = pv
		}
	}
	return nil
}

// isHere reports whether a volume is this node's. One of which that cannot be
// told may be.
func (p *pass) isHere(pv *v1.PersistentVolume) bool {
	if node := pv.Annotations[NodeAnnotation]; node != "" {
		return node == p.NodeName
	}
	here, err := claimbinding.MatchesNode(pv, map[string]string{v1.LabelHostname: p.hostLabel()}, p.NodeName)
	return here || err != nil
}

// decide decides on each thing, first on offered ones, then on file systems from
// the top, so that of two with the same data always the same is offered.
func (p *pass) decide(ctx context.Context) {
	for _, t := range p.things {
		if t.State == "" || t.State == StateFailed {
			p.recognize(t)
		}
	}
	order := slices.Clone(p.things)
	slices.SortStableFunc(order, func(a, b *thing) int {
		if len(a.root) != len(b.root) {
			return len(a.root) - len(b.root)
		}
		return strings.Compare(a.Path, b.Path)
	})
	for _, t := range order {
		if t.State != "" {
			continue
		}
		p.judge(ctx, t)
		if t.State == "" {
			p.offer(ctx, t)
		}
	}
}

// recognize finds the volume that a thing is: one that says so rather than one that
// does not say what it is.
func (p *pass) recognize(t *thing) {
	var unknown string
	for _, name := range slices.Sorted(maps.Keys(p.volumes)) {
		pv := p.volumes[name]
		if filepath.Clean(pv.Spec.Local.Path) != t.Path {
			continue
		}
		recorded := localdisk.RecordedID(pv)
		switch {
		case recorded == "":
			unknown = name
		case t.State == StateFailed:
			p.at[name] = t // that is not known, so it is not missing
		case t.known().Is(recorded):
			t.State, t.Volume, t.ID = StateKnown, name, recorded
			p.at[name] = t
			return
		}
	}
	if unknown != "" && t.State == "" {
		t.State, t.Volume = StateKnown, unknown
	}
}

// known are all names by which the thing may have been offered.
func (t *thing) known() localdisk.Identity {
	if t.slot == "" {
		return t.ids
	}
	return append(slices.Clone(t.ids), t.slot)
}

// judge refuses disks that must not be offered.
func (p *pass) judge(ctx context.Context, t *thing) {
	if !t.isDevice && t.class.VolumeMode == v1.PersistentVolumeBlock {
		t.refuse(ErrWrongMode, "%s is a mounted file system", t.Path)
		return
	}
	if t.Capacity.Sign() <= 0 {
		t.refuse(ErrEmpty, "%s", t.Path)
		return
	}
	if len(t.ids) == 0 {
		if t.slot == "" || !t.class.AllowUnidentified {
			t.refuse(ErrUnidentified, "%s, at %s, has no serial number, UUID or other name of its own; give it one, use a partition of it, or allow its slot to stand for it (AllowUnidentified)", t.Source, t.Path)
			return
		}
		t.ids = localdisk.Identity{t.slot}
		t.fileSystem, t.ID = t.ids, t.slot
	}
	p.judgeVolumes(t)
	if t.State == "" {
		p.judgeOthers(t)
	}
	if t.State == "" && t.isDevice {
		p.checkFree(ctx, t)
	}
	if t.State == "" {
		p.judgeContent(t)
	}
}

// judgeContent refuses a file system on a device that is a volume, and a device
// with a file system that is one, of which neither need be there at present.
func (p *pass) judgeContent(t *thing) {
	for _, name := range slices.Sorted(maps.Keys(p.volumes)) {
		recorded := localdisk.RecordedID(p.volumes[name])
		if recorded != "" && t.other.Overlaps(localdisk.Identity{recorded}) {
			t.Volume = name
			t.refuse(ErrSeenTwice, "%s has the data of PersistentVolume %q, which is %s", t.Path, name, recorded)
			return
		}
	}
}

// judgeVolumes refuses what a PersistentVolume stands for.
func (p *pass) judgeVolumes(t *thing) {
	for _, name := range slices.Sorted(maps.Keys(p.volumes)) {
		pv := p.volumes[name]
		dir := filepath.Clean(pv.Spec.Local.Path)
		recorded := localdisk.RecordedID(pv)
		switch {
		case recorded != "" && t.known().Is(recorded):
			t.refuse(ErrSeenTwice, "%s is PersistentVolume %q, which has the path %s; mount or link it there", t.ID, name, dir)
		case recorded != "" && t.known().Overlaps(localdisk.Identity{recorded}):
			t.refuse(ErrSeenTwice, "%s has data in common with PersistentVolume %q, which is %s", t.ID, name, recorded)
		case dir == t.Path:
			t.refuse(ErrPathTaken, "%s is %s, and PersistentVolume %q is %s; mount one of them elsewhere, or, if the volume's disk is lost, delete the PersistentVolume", t.Path, t.ID, name, recorded)
		case pathin.Overlap(t.Path, dir):
			t.refuse(ErrPathTaken, "%s and PersistentVolume %q at %s lie within one another", t.Path, name, dir)
		default:
			continue
		}
		t.Volume = name
		return
	}
}

// judgeOthers refuses disks that are offered already under another path.
func (p *pass) judgeOthers(t *thing) {
	for _, other := range p.things {
		if other == t || other.State != StateKnown && other.State != StateOffered {
			continue
		}
		same := t.ids.Overlaps(other.ids) || (t.isDevice || other.isDevice) && t.number != 0 && t.number == other.number
		if !same && (!t.fileSystem.Overlaps(other.fileSystem) || t.class.ShareFileSystems) {
			continue
		}
		advice := ""
		if !same {
			advice = "; directories of one file system can be offered each (ShareFileSystems)"
		}
		t.refuse(ErrSeenTwice, "%s is at %s too, PersistentVolume %q%s", t.ID, other.Path, other.Volume, advice)
		t.Volume = other.Volume
		return
	}
}
