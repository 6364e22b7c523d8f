package table_test

import (
	"context"
	"testing"
	"time"

	k8smount "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/mount/table"
)

// plainest is a mounter that can do nothing more than mount-utils asks for.
type plainest struct{ mount.Interface }

type inContext struct{ mount.Interface }

func (inContext) MountContext(context.Context, mount.Request) error { return nil }

func (inContext) UnmountContext(context.Context, string, mount.UnmountOptions) (mount.Rung, error) {
	return mount.RungNormal, nil
}

type forcible struct{ mount.Interface }

func (forcible) UnmountWithForce(string, time.Duration) error { return nil }

type both struct{ inContext }

func (both) UnmountWithForce(string, time.Duration) error { return nil }

// TestKeepReadsTheTableOnce counts how often the mount table is read for many
// questions of several askers, which knew of it by the mounter alone.
func TestKeepReadsTheTableOnce(t *testing.T) {
	m := table.Keep(inContext{plainest{}})
	var first mount.Table
	for range 50 {
		mounts := table.Of(m)
		if first == nil {
			first = mounts
		}
		if mounts != first {
			t.Fatal("each asker gets a table of its own")
		}
		if _, _, err := mounts.At("/"); err != nil {
			t.Fatal(err)
		}
		if _, _, err := mounts.At("/no/such/place"); err != nil {
			t.Fatal(err)
		}
	}
	loads, signals := first.(*mounttable.Table).Reads()
	// Others may mount meanwhile: each signal lets it be read once more.
	if loads == 0 || loads > 1+signals {
		t.Errorf("the table was read %d times for 100 questions, and has changed %d times", loads, signals)
	}
	t.Logf("%d reads for 100 questions", loads)
}

func TestKeepLeavesTheMounterAsItIs(t *testing.T) {
	fake, real := fakemount.New(), host.New(host.Config{})
	if table.Keep(nil) != nil || table.Keep(fake) != mount.Interface(fake) || table.Keep(real) != mount.Interface(real) {
		t.Error("one with a table of its own was given another")
	}
	for name, tt := range map[string]struct {
		m               mount.Interface
		context, forces bool
	}{
		"plain":           {plainest{}, false, false},
		"with a context":  {inContext{plainest{}}, true, false},
		"that can force":  {forcible{plainest{}}, false, true},
		"that can do all": {both{inContext{plainest{}}}, true, true},
	} {
		m := table.Keep(tt.m)
		if _, ok := m.(mount.ContextMounter); ok != tt.context {
			t.Errorf("%s: takes a context: %v", name, ok)
		}
		if _, ok := m.(k8smount.MounterForceUnmounter); ok != tt.forces {
			t.Errorf("%s: can force: %v", name, ok)
		}
		if again := table.Keep(m); again != m {
			t.Errorf("%s: was given a second table", name)
		}
		if of, ok := m.(interface{ Unwrap() mount.Interface }); !ok || of.Unwrap() == nil {
			t.Errorf("%s: nobody can get at it", name)
		}
	}
}
