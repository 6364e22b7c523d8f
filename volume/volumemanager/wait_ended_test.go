package volumemanager_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/volumemanager"
)

// errPatience is the cause of the end of ended's context.
var errPatience = errors.New("no patience")

func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errPatience)
	return ctx
}

// assertOutstanding fails unless the error says of volume v that it waits, and
// for what.
func assertOutstanding(t *testing.T, err error, waits string) {
	t.Helper()
	p, ok := errors.AsType[*volumemanager.PodError](err)
	if !ok || len(p.Errs) != 1 {
		t.Errorf("err = %v, want a *PodError of one volume", err)
		return
	}
	e, ok := errors.AsType[*volumemanager.PendingError](p.Errs[0])
	if !ok || e.Volume != "v" || !strings.Contains(e.Waits, waits) || !errors.Is(err, errPatience) {
		t.Errorf("err = %v, want one of volume v that waits for %q", err, waits)
	}
}

// A wait whose context has ended only looks.
func TestWaitWithAnEndedContext(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	pod := newPod("web", emptyDirVolume("v", "Memory"))
	if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if err := manager.WaitForMounted(ended(t), pod.UID); err != nil {
		t.Errorf("WaitForMounted of what is mounted: %v", err)
	}
	if err := manager.WaitForUnmounted(ended(t), pod.UID); !errors.Is(err, volumemanager.ErrSuperseded) {
		t.Errorf("WaitForUnmounted of what is wanted: %v", err)
	}
	if err := manager.WaitForMounted(ended(t), "nobody"); !errors.Is(err, volumemanager.ErrUnknownPod) {
		t.Errorf("WaitForMounted of a pod that nobody knows: %v", err)
	}
	if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []types.UID{pod.UID, "nobody"} {
		if err := manager.WaitForUnmounted(ended(t), uid); err != nil {
			t.Errorf("WaitForUnmounted of what is gone: %v", err)
		}
	}
}

func TestWaitWithAnEndedContextNamesWhatIsOutstanding(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	pod := newPod("web", emptyDirVolume("v", "Memory"))
	hangs, release := make(chan struct{}), make(chan struct{})
	hang := func(match func(fakemount.Call) bool) {
		w.fake.Inject(fakemount.Fault{Match: match, Nth: 1, Hook: func() { hangs <- struct{}{} }, Release: release})
	}
	hang(isMount)
	hang(isUnmount)
	if err := manager.PutPod(pod); err != nil {
		t.Fatal(err)
	}
	<-hangs
	assertOutstanding(t, manager.WaitForMounted(ended(t), pod.UID), "its set-up of")
	release <- struct{}{}
	if err := manager.WaitForMounted(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
	torn := make(chan error, 1)
	go func() { torn <- manager.TearDownPod(t.Context(), pod.UID) }()
	<-hangs
	assertOutstanding(t, manager.WaitForUnmounted(ended(t), pod.UID), "its tear-down of")
	release <- struct{}{}
	if err := <-torn; err != nil {
		t.Error(err)
	}
}

// What is mounted but has been declared again is outstanding: its contents are
// not yet those that were declared.
func TestWaitWithAnEndedContextForARefresh(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	pod := newPod("web", emptyDirVolume("v", ""))
	if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	outstanding := 0
	for i := range 200 {
		pod.Labels = map[string]string{"round": strconv.Itoa(i)}
		if err := manager.PutPod(pod); err != nil {
			t.Fatal(err)
		}
		// The refresh is under way, not begun, or done.
		if err := manager.WaitForMounted(ended(t), pod.UID); err != nil {
			outstanding++
			assertOutstanding(t, err, "its set-up")
		}
		if err := manager.WaitForMounted(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
	}
	if outstanding == 0 {
		t.Error("no wait ended before the refresh")
	}
}

func TestWaitWithAnEndedContextBeforeRun(t *testing.T) {
	w := newWorld(t)
	manager, err := volumemanager.New(w.config())
	if err != nil {
		t.Fatal(err)
	}
	pod := newPod("web", emptyDirVolume("v", ""))
	if err := manager.PutPod(pod); err != nil {
		t.Fatal(err)
	}
	for what, wait := range map[string]func(context.Context, types.UID) error{
		"WaitForMounted": manager.WaitForMounted, "WaitForUnmounted": manager.WaitForUnmounted,
	} {
		err := wait(ended(t), pod.UID)
		if e, ok := errors.AsType[*volumemanager.RecoveryError](err); !ok || e.RootDir != w.root || !errors.Is(err, errPatience) {
			t.Errorf("%s: %v, want a *RecoveryError", what, err)
		}
	}
}

// Who forgets Run is told so, by the calls that would wait for ever, and by those
// whose context ends.
func TestCallsBeforeRun(t *testing.T) {
	pod := newPod("web", emptyDirVolume("v", ""))
	calls := map[string]func(context.Context, *volumemanager.Manager) error{
		"SetUpPod": func(ctx context.Context, m *volumemanager.Manager) error {
			_, err := m.SetUpPod(ctx, pod)
			return err
		},
		"TearDownPod": func(ctx context.Context, m *volumemanager.Manager) error { return m.TearDownPod(ctx, pod.UID) },
		"ContainerMounts": func(ctx context.Context, m *volumemanager.Manager) error {
			_, _, err := m.ContainerMounts(ctx, pod.UID, "main", containermounts.Options{})
			return err
		},
	}
	for name, call := range calls {
		synctest.Test(t, func(t *testing.T) {
			manager, err := volumemanager.New(newWorld(t).config())
			if err != nil {
				t.Fatal(err)
			}
			if err := call(t.Context(), manager); !errors.Is(err, volumemanager.ErrNotRun) {
				t.Errorf("%s without Run: %v", name, err)
			}
			if err := call(ended(t), manager); !errors.Is(err, volumemanager.ErrNotRun) || !errors.Is(err, errPatience) {
				t.Errorf("%s without Run, with a context that has ended: %v", name, err)
			}
		})
	}
	for name, wait := range map[string]func(*volumemanager.Manager, context.Context) error{
		"WaitForRecovery": (*volumemanager.Manager).WaitForRecovery,
		"WaitForMounted":  func(m *volumemanager.Manager, ctx context.Context) error { return m.WaitForMounted(ctx, pod.UID) },
	} {
		manager, err := volumemanager.New(newWorld(t).config())
		if err != nil {
			t.Fatal(err)
		}
		if err := wait(manager, ended(t)); !errors.Is(err, volumemanager.ErrNotRun) || !errors.Is(err, errPatience) {
			t.Errorf("%s without Run: %v", name, err)
		}
	}
}
