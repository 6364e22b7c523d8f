package devices

import (
	"errors"
	"slices"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/selinux"
)

// pod is a holder that counts its calls.
type pod struct {
	holding                    Holding
	exists, wanted, mounted    bool
	resynced, proceeded, shown int
}

func (p *pod) Holding() *Holding { return &p.holding }
func (p *pod) Exists() bool      { return p.exists }
func (p *pod) IsWanted() bool    { return p.wanted }
func (p *pod) IsMounted() bool   { return p.mounted }
func (p *pod) Resync()           { p.resynced++ }
func (p *pod) Proceed()          { p.proceeded++ }
func (p *pod) Publish()          { p.shown++ }

var errUnattached = errors.New("unattached")

func newTable() *Table {
	return New(Config{
		Lock:         new(sync.Mutex),
		IsMountPoint: func(string) (bool, error) { return false, nil },
		Hidden:       func(string) error { return nil },
		Unattached:   func(Reports) error { return errUnattached },
	})
}

// attachable is an attachable plugin of which only the type matters.
type attachable struct{ volume.AttachableVolumePlugin }

var disk = &Use{Key: Key{Name: "disk/a", Path: "/globalmount"}, attach: attachable{}}

// The last volume keeps its device until that is unmounted; the others leave at once.
func TestTheLastHolderKeepsTheDevice(t *testing.T) {
	table, a, b := newTable(), &pod{}, &pod{}
	table.hold(a, disk.Key).touched = true
	table.hold(b, disk.Key)
	if !table.LetGo(a, disk) {
		t.Error("the first of two was not let go")
	}
	if table.LetGo(b, disk) {
		t.Error("the last one was let go though the device may be mounted")
	}
	if !table.mustUnmount(b, disk.Key) {
		t.Error("the last one need not unmount")
	}
	table.set(disk.Key, state{})
	if !table.LetGo(b, disk) || len(table.devices) != 0 {
		t.Errorf("after the unmount %d devices are left", len(table.devices))
	}
}

// A volume with another label waits for the others, and is resynced when they have gone.
func TestAnotherLabelWaits(t *testing.T) {
	table, first, second := newTable(), &pod{}, &pod{}
	d := table.hold(first, disk.Key)
	d.touched, d.label = true, "c1"
	spec := volume.NewSpecFromVolume(&v1.Volume{Name: "v"})
	asks := Request{Holder: second, Use: disk, Spec: spec, Label: "c2"}
	if err := table.Admit(asks, nil); !errors.Is(err, selinux.ErrConflict) || volume.IsUncertain(err) {
		t.Fatalf("Admit: %v", err)
	}
	table.set(disk.Key, state{}) // unmounted
	table.removeHolder(first, disk.Key)
	if second.resynced != 1 {
		t.Errorf("the waiting volume was resynced %d times", second.resynced)
	}
	if err := table.Admit(asks, nil); err != nil {
		t.Errorf("Admit after the others have gone: %v", err)
	}
}

// A volume that waits for a label is resynced when the only other holder has the device
// mounted with just that label, though the other does not let go.
func TestTheLabelWaitedForComes(t *testing.T) {
	table, first, second, third := newTable(), &pod{}, &pod{}, &pod{}
	d := table.hold(first, disk.Key)
	d.touched, d.label = true, "x"
	spec := volume.NewSpecFromVolume(&v1.Volume{Name: "v"})
	asks := Request{Holder: second, Use: disk, Spec: spec, Label: "y"}
	if err := table.Admit(asks, nil); !errors.Is(err, selinux.ErrConflict) {
		t.Fatalf("Admit: %v", err)
	}
	if err := table.Admit(Request{Holder: third, Use: disk, Spec: spec, Label: "z"}, nil); !errors.Is(err, selinux.ErrConflict) {
		t.Fatalf("Admit of the third: %v", err)
	}
	table.set(disk.Key, state{touched: true, label: "y"})
	if second.resynced != 1 || third.resynced != 0 {
		t.Errorf("the volume that waits for the label was resynced %d times, the other one %d times", second.resynced, third.resynced)
	}
	if err := table.Admit(asks, nil); err != nil {
		t.Errorf("Admit with the label: %v", err)
	}
}

// Both reports must be there; a report of what is left out of the list does not count.
func TestReports(t *testing.T) {
	table, p := newTable(), &pod{wanted: true}
	table.Join(p, disk)
	if err := table.CheckReports(p); err != errUnattached {
		t.Errorf("without reports: %v", err)
	}
	table.SetAttached([]v1.AttachedVolume{{Name: "disk/a", DevicePath: "/dev/x"}})
	if p.shown != 1 || p.proceeded != 0 || table.CheckReports(p) == nil {
		t.Errorf("attached alone: shown %d, proceeded %d", p.shown, p.proceeded)
	}
	table.SetInUse(table.InUse(nil))
	if p.proceeded != 1 || table.CheckReports(p) != nil {
		t.Errorf("with both: proceeded %d, %v", p.proceeded, table.CheckReports(p))
	}
	p.wanted = false
	if names := table.InUse(nil); len(names) != 0 {
		t.Errorf("not wanted, and in use: %v", names)
	}
	if table.CheckReports(p) == nil {
		t.Error("a report counts after the volume was left out of the list")
	}
	if names := table.InUse([]string{"disk/"}); !slices.Equal(names, []v1.UniqueVolumeName{"disk/a"}) {
		t.Errorf("hidden volumes are left out: %v", names)
	}
}
