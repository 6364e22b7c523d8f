package fault_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/util/fault"
)

var errDisk = errors.New("disk on fire")

func TestFaults(t *testing.T) {
	isB := func(c string) bool { return c == "b" }
	tests := map[string]struct {
		fault   fault.Fault[string]
		calls   []string
		errs    []error
		effects []string
	}{
		"none": {calls: []string{"a"}, errs: []error{nil}, effects: []string{"a"}},
		"every call, before its effect": {
			fault: fault.Fault[string]{Err: errDisk},
			calls: []string{"a", "b"}, errs: []error{errDisk, errDisk},
		},
		"after its effect": {
			fault: fault.Fault[string]{Err: errDisk, After: true},
			calls: []string{"a"}, errs: []error{errDisk}, effects: []string{"a"},
		},
		"by matcher": {
			fault: fault.Fault[string]{Err: errDisk, Match: isB},
			calls: []string{"a", "b", "a"}, errs: []error{nil, errDisk, nil}, effects: []string{"a", "a"},
		},
		"the second match only": {
			fault: fault.Fault[string]{Err: errDisk, Match: isB, Nth: 2},
			calls: []string{"b", "a", "b", "b"}, errs: []error{nil, nil, errDisk, nil}, effects: []string{"b", "a", "b"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var injector fault.Injector[string]
			remove := injector.Inject(tc.fault)
			var effects []string
			do := func(call string) error {
				return injector.Do(t.Context(), call, func() error { effects = append(effects, call); return nil })
			}
			for n, call := range tc.calls {
				if err := do(call); err != tc.errs[n] {
					t.Errorf("call %d (%s): err = %v, want %v", n, call, err, tc.errs[n])
				}
			}
			if !slices.Equal(effects, tc.effects) {
				t.Errorf("effects = %v, want %v", effects, tc.effects)
			}
			if got := injector.Calls(); !slices.Equal(got, tc.calls) {
				t.Errorf("logged %v, want %v", got, tc.calls)
			}
			remove()
			if err := do("b"); err != nil {
				t.Errorf("the removed fault still hits: %v", err)
			}
		})
	}
}

func TestHook(t *testing.T) {
	for after, want := range map[bool][]string{false: {"hook", "effect"}, true: {"effect", "hook"}} {
		var injector fault.Injector[string]
		var order []string
		injector.Inject(fault.Fault[string]{After: after, Hook: func() { order = append(order, "hook") }})
		err := injector.Do(t.Context(), "a", func() error { order = append(order, "effect"); return nil })
		if err != nil || !slices.Equal(order, want) {
			t.Errorf("after = %v: %v, %v; want %v", after, order, err, want)
		}
	}
}

func TestHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var injector fault.Injector[string]
		release := make(chan struct{})
		injector.Inject(fault.Fault[string]{Release: release, Delay: time.Second})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		ran := false
		effect := func() error { ran = true; return nil }
		if err := injector.Do(ctx, "a", effect); !errors.Is(err, context.DeadlineExceeded) || ran {
			t.Fatalf("err = %v, ran = %v; want the context to end the hang before the effect", err, ran)
		}
		start := time.Now()
		go func() { time.Sleep(time.Minute); close(release) }()
		if err := injector.Do(t.Context(), "a", effect); err != nil || !ran {
			t.Fatalf("err = %v, ran = %v; want the release to let the call go on", err, ran)
		}
		if waited := time.Since(start); waited != time.Minute {
			t.Fatalf("hung for %v, want a minute", waited)
		}
	})
}
