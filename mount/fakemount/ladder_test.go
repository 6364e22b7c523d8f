package fakemount_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/mounttest"
)

func isOp(op string) func(fakemount.Call) bool {
	return func(c fakemount.Call) bool { return c.Op == op }
}

// attempts are the unmounts' operations and rungs. Forcing again and again is one.
func attempts(f *fakemount.Mounter) []string {
	var all []string
	for _, c := range f.Calls() {
		if c.Op == fakemount.OpStatfs {
			continue
		}
		attempt := c.Op + " " + c.Rung.String()
		if c.Op != fakemount.OpUnmountForce || !slices.Contains(all, attempt) {
			all = append(all, attempt)
		}
	}
	return all
}

func TestFakeUnmountLadder(t *testing.T) {
	never := make(chan struct{})
	options := mount.UnmountOptions{ForceAfter: time.Minute, LazyAfter: 2 * time.Minute}
	tests := map[string]struct {
		source  string // of an NFS mount unless given
		faults  []fakemount.Fault
		options mount.UnmountOptions
		rung    mount.Rung
		err     error
		took    time.Duration
		calls   []string
		stays   bool
	}{
		"nothing hangs": {options: options, rung: mount.RungNormal, calls: []string{"unmount normal"}},
		"hangs once": {
			faults:  []fakemount.Fault{{Match: isOp(mount.OpUnmount), Nth: 1, Release: never}},
			options: options, rung: mount.RungForce, took: time.Minute,
			calls: []string{"unmount normal", "unmount-force force", "unmount force"},
		},
		"hangs for good": {
			faults:  []fakemount.Fault{{Match: isOp(mount.OpUnmount), Release: never}},
			options: options, rung: mount.RungLazy, took: 2 * time.Minute,
			calls: []string{"unmount normal", "unmount-force force", "unmount force", "unmount-lazy lazy"},
		},
		"forcing fails": {
			faults: []fakemount.Fault{
				{Match: isOp(mount.OpUnmount), Nth: 1, Release: never},
				{Match: isOp(fakemount.OpUnmountForce), Err: unix.EBUSY},
			},
			options: options, rung: mount.RungForce, took: time.Minute,
			calls: []string{"unmount normal", "unmount-force force", "unmount force"},
		},
		"the second time, forcing frees it": {
			faults: []fakemount.Fault{
				{Match: isOp(mount.OpUnmount), Nth: 1, Release: never},
				{Match: isOp(mount.OpUnmount), Nth: 2, Err: unix.EBUSY},
				{Match: isOp(mount.OpUnmount), Nth: 3, Err: unix.EBUSY},
			},
			options: options, rung: mount.RungForce, took: time.Minute + 150*time.Millisecond,
			calls: []string{"unmount normal", "unmount-force force", "unmount force", "unmount force", "unmount force"},
		},
		"without force": {
			faults:  []fakemount.Fault{{Match: isOp(mount.OpUnmount), Release: never}},
			options: mount.UnmountOptions{LazyAfter: time.Minute}, rung: mount.RungLazy, took: time.Minute,
			calls: []string{"unmount normal", "unmount-lazy lazy"},
		},
		"without lazy": {
			faults:  []fakemount.Fault{{Match: isOp(mount.OpUnmount), Release: never}},
			options: mount.UnmountOptions{ForceAfter: time.Minute}, rung: mount.RungForce, took: time.Hour,
			err: context.DeadlineExceeded, stays: true,
			calls: []string{"unmount normal", "unmount-force force", "unmount force"},
		},
		"without a ladder": {
			faults: []fakemount.Fault{{Match: isOp(mount.OpUnmount), Release: never}},
			rung:   mount.RungNormal, took: time.Hour, err: context.DeadlineExceeded, stays: true,
			calls: []string{"unmount normal"},
		},
		"fails without a ladder": {
			faults: []fakemount.Fault{{Match: isOp(mount.OpUnmount), Err: unix.EBUSY}},
			rung:   mount.RungNormal, err: mount.ErrBusy, stays: true,
			calls: []string{"unmount normal"},
		},
		"even lazy fails": {
			faults: []fakemount.Fault{
				{Match: isOp(mount.OpUnmount), Release: never},
				{Match: isOp(fakemount.OpUnmountLazy), Err: unix.EPERM},
			},
			options: options, rung: mount.RungLazy, took: 2 * time.Minute, err: mount.ErrNotPermitted, stays: true,
			calls: []string{"unmount normal", "unmount-force force", "unmount force", "unmount-lazy lazy"},
		},
		"busy for a while": {
			faults:  []fakemount.Fault{{Match: isOp(mount.OpUnmount), Nth: 1, Err: unix.EBUSY}},
			options: options, rung: mount.RungNormal, took: 50 * time.Millisecond,
			calls: []string{"unmount normal", "unmount normal"},
		},
		"not permitted": {
			faults:  []fakemount.Fault{{Match: isOp(mount.OpUnmount), Err: unix.EPERM}},
			options: options, rung: mount.RungNormal, err: mount.ErrNotPermitted, stays: true,
			calls: []string{"unmount normal"},
		},
		"hangs after its effect": {
			faults:  []fakemount.Fault{{Match: isOp(mount.OpUnmount), After: true, Release: never}},
			options: options, rung: mount.RungNormal, took: time.Second, // when it is seen that nothing is left
			calls: []string{"unmount normal"},
		},
		"a type that cannot be forced": {
			source:  "/dev/sdx",
			faults:  []fakemount.Fault{{Match: isOp(mount.OpUnmount), Nth: 1, Release: never}},
			options: mount.UnmountOptions{ForceAfter: time.Minute}, rung: mount.RungNormal, took: time.Minute,
			calls: []string{"unmount normal", "unmount normal"},
		},
		"a block device is not detached": {
			source:  "/dev/sdx",
			faults:  []fakemount.Fault{{Match: isOp(mount.OpUnmount), Release: never}},
			options: mount.UnmountOptions{LazyAfter: time.Minute}, rung: mount.RungNormal, took: time.Hour,
			err: context.DeadlineExceeded, stays: true,
			calls: []string{"unmount normal", "unmount normal"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f, root := mounttest.NewFake(t, "v")
			target := filepath.Join(root, "v")
			request := mount.Request{Source: "server:/x", Target: target, FSType: "nfs"}
			if tc.source != "" {
				request.Source, request.FSType = tc.source, "ext4"
			}
			mounttest.MountBy(t, f, request)
			f.ResetCalls()
			synctest.Test(t, func(t *testing.T) {
				faults := slices.Clone(tc.faults)
				for i := range faults {
					if faults[i].Release != nil {
						faults[i].Release = make(chan struct{}) // of virtual time's own
					}
				}
				defer f.Inject(faults...)()
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				start := time.Now()
				rung, err := f.UnmountContext(ctx, target, tc.options)
				if rung != tc.rung || !errors.Is(err, tc.err) || (err == nil) != (tc.err == nil) {
					t.Errorf("UnmountContext = %v, %v; want %v, %v", rung, err, tc.rung, tc.err)
				}
				if took := time.Since(start); took != tc.took {
					t.Errorf("it took %v, want %v", took, tc.took)
				}
			})
			if diff := cmp.Diff(tc.calls, attempts(f)); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			if _, mounted, err := f.Table().At(target); err != nil || mounted != tc.stays {
				t.Errorf("mounted = %v, %v; want %v", mounted, err, tc.stays)
			}
		})
	}
}

func TestFakeLadderTakesOnlyOneOfAStack(t *testing.T) {
	f, root := mounttest.NewFake(t)
	for range 2 {
		mounttest.MountBy(t, f, mount.Request{Source: "tmpfs", Target: root, FSType: "tmpfs"})
	}
	f.Inject(fakemount.Fault{Match: isOp(mount.OpUnmount), After: true, Nth: 1, Err: unix.EIO})
	synctest.Test(t, func(t *testing.T) {
		if _, err := f.UnmountContext(t.Context(), root, mount.UnmountOptions{LazyAfter: time.Minute}); err != nil {
			t.Error(err)
		}
	})
	if _, mounted, _ := f.Table().At(root); !mounted {
		t.Error("the retry took the mount below as well")
	}
	mustUnmount(t, f, root)
}

func TestFakeHangs(t *testing.T) {
	f, root := mounttest.NewFake(t)
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		remove := f.Inject(fakemount.Fault{Match: isOp(mount.OpMount), Release: release})
		request := mount.Request{Source: "server:/x", Target: root, FSType: "nfs"}
		reason := errors.New("the pod is gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(reason) })
		err := f.MountContext(ctx, request)
		if e, ok := errors.AsType[*mount.Error](err); !ok || !e.Uncertain || !errors.Is(err, reason) || !errors.Is(err, mount.ErrCanceled) {
			t.Errorf("a hung mount, given up: %v", err)
		}
		err = f.MountContext(ctx, request)
		if e, ok := errors.AsType[*mount.Error](err); !ok || e.Uncertain || !errors.Is(err, reason) {
			t.Errorf("a mount with a context that had ended: %v", err)
		}
		done := make(chan error)
		go func() { done <- f.Mount("server:/x", root, "nfs", nil) }()
		synctest.Wait()
		// The hung mount holds no lock.
		if is, err := f.IsMountPoint(root); is || err != nil {
			t.Errorf("IsMountPoint = %v, %v", is, err)
		}
		close(release)
		if err := <-done; err != nil {
			t.Error(err)
		}
		remove()
	})
}

func TestFakeFaults(t *testing.T) {
	f, root := mounttest.NewFake(t)
	mine := errors.New("mine")
	remove := f.Inject(fakemount.Fault{Match: isOp(mount.OpMount), After: true, Err: mine, Delay: time.Millisecond})
	err := f.Mount("server:/x", root, "nfs", nil)
	if _, ok := errors.AsType[*mount.Error](err); !ok || !errors.Is(err, mine) {
		t.Errorf("err = %v", err)
	}
	if is, _ := f.IsMountPoint(root); !is {
		t.Error("the fault after the effect prevented it")
	}
	remove()
	mustUnmount(t, f, root)
	helper := &mount.Error{Op: mount.OpMount, Target: root, Cause: mount.ErrHelperMissing}
	f.Inject(fakemount.Fault{Err: helper})
	err = f.Mount("server:/x", root, "nfs", nil)
	if got, ok := errors.AsType[*mount.Error](err); !ok || cmp.Diff(helper, got) != "" {
		t.Errorf("an injected *Error comes out as %#v", err)
	}
}
