package mount

import (
	"context"
	"testing"
	"time"

	k8smount "k8s.io/mount-utils"
)

// plainest is a mounter that can do nothing more than mount-utils asks for.
type plainest struct{ Interface }

type inContext struct{ Interface }

func (inContext) MountContext(context.Context, Request) error { return nil }

func (inContext) UnmountContext(context.Context, string, UnmountOptions) (Rung, error) {
	return RungNormal, nil
}

type forcible struct{ Interface }

func (forcible) UnmountWithForce(string, time.Duration) error { return nil }

type both struct{ inContext }

func (both) UnmountWithForce(string, time.Duration) error { return nil }

// TestKeepTableReadsOnce counts how often the mount table is read for many
// questions of several askers, which knew of it by the mounter alone.
func TestKeepTableReadsOnce(t *testing.T) {
	m := KeepTable(inContext{plainest{}})
	var first Table
	for range 50 {
		table, err := TableOf(m)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = table
		}
		if table != first {
			t.Fatal("each asker gets a table of its own")
		}
		if _, _, err := table.At("/"); err != nil {
			t.Fatal(err)
		}
		if _, _, err := table.At("/no/such/place"); err != nil {
			t.Fatal(err)
		}
	}
	x := first.(*index)
	x.mu.Lock()
	loads, signals := x.loads, x.signals
	if x.byMountinfo { // on a kernel without calls for single mounts
		loads = x.edition
	}
	x.mu.Unlock()
	// Others may mount meanwhile: each signal lets it be read once more.
	if loads == 0 || loads > 1+signals {
		t.Errorf("the table was read %d times for 100 questions, and has changed %d times", loads, signals)
	}
	t.Logf("%d reads for 100 questions", loads)
}

func TestKeepTableKeepsTheMounter(t *testing.T) {
	fake, host := NewFakeMounter(), New(Config{})
	if KeepTable(nil) != nil || KeepTable(fake) != Interface(fake) || KeepTable(host) != Interface(host) {
		t.Error("one with a table of its own was given another")
	}
	for name, tt := range map[string]struct {
		m               Interface
		context, forces bool
	}{
		"plain":           {plainest{}, false, false},
		"with a context":  {inContext{plainest{}}, true, false},
		"that can force":  {forcible{plainest{}}, false, true},
		"that can do all": {both{inContext{plainest{}}}, true, true},
	} {
		m := KeepTable(tt.m)
		if _, ok := m.(ContextMounter); ok != tt.context {
			t.Errorf("%s: takes a context: %v", name, ok)
		}
		if _, ok := m.(k8smount.MounterForceUnmounter); ok != tt.forces {
			t.Errorf("%s: can force: %v", name, ok)
		}
		if again := KeepTable(m); again != m {
			t.Errorf("%s: was given a second table", name)
		}
		if of, ok := m.(interface{ Unwrap() Interface }); !ok || of.Unwrap() == nil {
			t.Errorf("%s: nobody can get at it", name)
		}
	}
}
