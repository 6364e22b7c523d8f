package devices

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// Reports are the node's reports on an attachable volume. Both reports must be
// there before the volume is mounted.
type Reports struct {
	Volume v1.UniqueVolumeName
	// InUse: the node's status lists it in use; Attached: as attached.
	InUse, Attached bool
}

// attachment is one attachable volume, which volumes of pods here want or have.
type attachment struct {
	name  v1.UniqueVolumeName
	spec  *volume.Spec // as it was joined last
	users map[Holder]struct{}
}

// isInUse reports whether the volume may not be detached.
func (a *attachment) isInUse() bool {
	for h := range a.users {
		if h.Exists() || h.IsWanted() {
			return true
		}
	}
	return false
}

// Join makes a volume count as one that wants or has its attachable device; a nil
// use, or one of nothing attachable: none. A volume on disk keeps what it has, unless that
// was not sure. The caller holds the lock.
func (t *Table) Join(h Holder, use *Use) {
	name := use.attachable()
	holding := h.Holding()
	if a := holding.attachment; a != nil {
		if a.name == name {
			a.spec = use.spec
			holding.unsure = holding.unsure && use.Unsure != nil
			return
		}
		denied := holding.unsure && use != nil && use.Key.Name == a.name
		if h.Exists() && !denied {
			return
		}
		t.Leave(h)
	}
	if name == "" {
		return
	}
	holding.unsure = use.Unsure != nil
	a := t.attachments[name]
	if a == nil {
		a = &attachment{name: name, users: make(map[Holder]struct{})}
		t.attachments[name] = a
	}
	a.users[h], a.spec = struct{}{}, use.spec
	holding.attachment = a
}

// Spec returns the volume that must be attached under a name; nil: none that a volume wants or
// has.
func (t *Table) Spec(name v1.UniqueVolumeName) *volume.Spec {
	t.Lock.Lock()
	defer t.Lock.Unlock()
	if a := t.attachments[name]; a != nil {
		return a.spec
	}
	return nil
}

// Leave undoes Join. The caller holds the lock.
func (t *Table) Leave(h Holder) {
	holding := h.Holding()
	a := holding.attachment
	if a == nil {
		return
	}
	holding.attachment, holding.unsure = nil, false
	delete(a.users, h)
	if len(a.users) == 0 {
		delete(t.attachments, a.name)
	}
}

// Missing says which reports there are of what a volume has attached, unless both are there
// or it has nothing attached for sure. The caller holds the lock.
func (t *Table) Missing(h Holder) (reports Reports, missing bool) {
	a := h.Holding().attachment
	if a == nil || h.Holding().unsure {
		return Reports{}, false
	}
	r := Reports{Volume: a.name}
	_, r.InUse = t.reported[a.name]
	_, r.Attached = t.attached[a.name]
	return r, !r.InUse || !r.Attached
}

// CheckReports returns the error of [Config].Unattached where a report is missing. The
// caller holds the lock.
func (t *Table) CheckReports(h Holder) error {
	if r, missing := t.Missing(h); missing {
		return t.Unattached(r)
	}
	return nil
}

// IsReporting says whether attached volumes were ever reported. The caller holds
// the lock.
func (t *Table) IsReporting() bool { return t.attached != nil }

// InUse returns the names, sorted, of the attachable volumes that are wanted or mounted
// here, or that an earlier owner has left staged, and of all that any report names and that begin with
// one of the hidden prefixes or may be a device in doubt. A
// volume that is left out counts as unreported from then on: a report that lacks it may be
// on its way. The caller holds the lock.
func (t *Table) InUse(hidden []string) []v1.UniqueVolumeName {
	names := make([]v1.UniqueVolumeName, 0, len(t.attachments)+len(t.left))
	for key := range t.left {
		names = append(names, key.Name)
	}
	for name, a := range t.attachments {
		if a.isInUse() {
			names = append(names, name)
		}
	}
	isHidden := func(name v1.UniqueVolumeName) bool {
		return slices.ContainsFunc(hidden, func(prefix string) bool { return strings.HasPrefix(string(name), prefix) }) ||
			slices.ContainsFunc(t.doubts, func(d Doubt) bool { return d.mayBe(name) })
	}
	for name := range t.attached {
		if isHidden(name) {
			names = append(names, name)
		}
	}
	for name := range t.reported {
		if isHidden(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	maps.DeleteFunc(t.reported, func(name v1.UniqueVolumeName, _ struct{}) bool {
		_, listed := slices.BinarySearch(names, name)
		return !listed
	})
	return names
}

// SetInUse says which volumes the node's status lists in use. The caller holds the lock.
func (t *Table) SetInUse(names []v1.UniqueVolumeName) {
	before := t.reported
	t.reported = make(map[v1.UniqueVolumeName]struct{}, len(names))
	for _, name := range names {
		t.reported[name] = struct{}{}
	}
	for name := range t.reported {
		if _, was := before[name]; !was {
			t.proceed(name)
		}
	}
}

// SetAttached says which volumes are attached to this node, all of them. The caller holds
// the lock.
func (t *Table) SetAttached(attached []v1.AttachedVolume) {
	before := t.attached
	t.attached = make(map[v1.UniqueVolumeName]string, len(attached))
	for _, v := range attached {
		t.attached[v.Name] = v.DevicePath
	}
	for name, a := range t.attachments {
		was, wasAttached := before[name]
		is, isAttached := t.attached[name]
		switch {
		case before == nil, wasAttached != isAttached:
			for h := range a.users {
				h.Publish()
			}
		case was == is:
			continue
		}
		t.proceed(name)
	}
}

// proceed has the volumes go on whose reports are all there.
func (t *Table) proceed(name v1.UniqueVolumeName) {
	a := t.attachments[name]
	if a == nil {
		return
	}
	for h := range a.users {
		if _, missing := t.Missing(h); !missing {
			h.Proceed()
		}
	}
}
