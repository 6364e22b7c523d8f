package localdiscovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/localdisk"
	"github.com/podvol/podvol/volume/objects"
)

// findMissing says of the volumes of these classes whether their disk is there.
func (p *pass) findMissing(ctx context.Context) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(p.volumes)) {
		pv := p.volumes[name]
		class := p.classOf(pv)
		if class == nil {
			continue
		}
		t := p.at[name]
		if t == nil {
			t = p.missing(pv, class)
			p.things = append(p.things, t)
		}
		if t.State == StateFailed {
			continue
		}
		if err := p.mark(ctx, pv, t); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// classOf returns the class that has, or would have, offered a volume of this
// package, or nil.
func (p *pass) classOf(pv *v1.PersistentVolume) *Class {
	if localdisk.RecordedID(pv) == "" || pv.Annotations[NodeAnnotation] != p.NodeName {
		return nil
	}
	dir, name := filepath.Split(filepath.Clean(pv.Spec.Local.Path))
	for i := range p.classes {
		if c := &p.classes[i]; c.Dir == filepath.Clean(dir) && c.has(name) {
			return c
		}
	}
	return nil
}

func (p *pass) missing(pv *v1.PersistentVolume, class *Class) *thing {
	recorded := localdisk.RecordedID(pv)
	t := &thing{class: class}
	t.Found = Found{
		Path: filepath.Clean(pv.Spec.Local.Path), StorageClass: class.StorageClass, State: StateMissing, Volume: pv.Name, ID: recorded,
		Capacity: *pv.Spec.Capacity.Storage(),
	}
	if pv.Spec.VolumeMode != nil {
		t.Mode = *pv.Spec.VolumeMode
	}
	e := &localdisk.OtherDiskError{Volume: pv.Name, Path: t.Path, Want: recorded}
	t.Err = e
	for _, other := range p.things {
		switch {
		case other.State == StateMissing:
		case other.Path == t.Path && !errors.Is(other.Err, ErrHidden) && !errors.Is(other.Err, ErrNoVolume):
			e.Found = other.ID
		case other.known().Is(recorded):
			t.Err = fmt.Errorf("%w; it is at %s now", e, other.Path)
		}
	}
	return t
}

// mark notes on the PersistentVolume that its disk is missing, or back.
func (p *pass) mark(ctx context.Context, pv *v1.PersistentVolume, t *thing) error {
	noted, is := pv.Annotations[MissingAnnotation]
	if !p.write || is == (t.State == StateMissing) && (!is || strings.HasSuffix(noted, ": "+t.Err.Error())) {
		return nil
	}
	next := pv.DeepCopy()
	eventType, reason, message := v1.EventTypeNormal, ReasonBack, fmt.Sprintf("the volume's disk is at %s again", t.Path)
	if t.State == StateMissing {
		eventType, reason, message = v1.EventTypeWarning, ReasonMissing, t.Err.Error()
		since, _, known := strings.Cut(noted, ": ")
		if !known {
			since = time.Now().UTC().Format(time.RFC3339)
		}
		if next.Annotations == nil {
			next.Annotations = make(map[string]string)
		}
		next.Annotations[MissingAnnotation] = since + ": " + message
	} else {
		delete(next.Annotations, MissingAnnotation)
	}
	_, err := p.Objects.Update(ctx, next)
	if err != nil {
		if errors.Is(err, volume.ErrNotFound) {
			return nil
		}
		if !errors.Is(err, objects.ErrConflict) {
			err = fmt.Errorf("note on PersistentVolume %q that its disk is missing or back: %w", pv.Name, err)
		}
		return err
	}
	if p.Events != nil {
		p.Events.Event(pv, eventType, reason, message)
	}
	return nil
}
