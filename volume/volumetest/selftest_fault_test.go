package volumetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
)

func brokenFaults() []broken {
	return []broken{
		{
			defect: "it gives up for good after a failed SetUp",
			breaks: "faults/setup-retried",
			also:   []string{"faults/retry-at", "cancel/all-hangs", "cancel/before", "cancel/during", "cancel/hang", "faults/refresh"},
			alter: func() alteration {
				var failed memory
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					if failed.has(dir) {
						return errors.New("failed before")
					}
					err := m.SetUpAt(ctx, dir, noArgs)
					if err != nil {
						failed.add(dir)
					}
					return err
				}}
			},
		},
		{
			defect: "it tears down only what was set up without failure",
			breaks: "faults/setup-torn-down",
			also:   []string{},
			alter: func() alteration {
				var failed memory
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					err := m.SetUpAt(ctx, dir, noArgs)
					if failed.remove(dir); err != nil {
						failed.add(dir)
					}
					return err
				}, tearDownAt: func(ctx context.Context, u *noteUnmounter, dir string) error {
					if failed.has(dir) {
						return errors.New("was never set up")
					}
					return u.TearDownAt(ctx, dir)
				}}
			},
		},
		{
			defect: "it says that nothing was done although it does not clean up",
			breaks: "faults/nothing-done",
			also:   []string{"cancel/all-hangs", "cancel/hang"},
			alter: func() alteration {
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					if m.path == "" || mountedAt(&m.noteVolume, dir) {
						return m.SetUpAt(ctx, dir, noArgs)
					}
					if err := os.MkdirAll(dir, 0o750); err != nil {
						return volume.NothingDone(err)
					}
					return volume.NothingDone(mount.Mount(ctx, m.Host.GetMounter(), mount.Request{Source: m.path, Target: dir, Options: []string{"bind", "ro"}}))
				}}
			},
		},
		{
			defect: "it refreshes by mounting anew",
			breaks: "faults/refresh",
			alter: func() alteration {
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					if mountedAt(&m.noteVolume, dir) {
						if err := podmount.TearDown(ctx, m.Host.GetMounter(), dir, mount.UnmountOptions{}); err != nil {
							return err
						}
					}
					return m.SetUpAt(ctx, dir, noArgs)
				}}
			},
		},
		{
			defect: "its TearDown hides errors",
			breaks: "faults/teardown-retried",
			also:   []string{"hostility/link-as-volume"},
			alter: func() alteration {
				return alteration{tearDownAt: func(ctx context.Context, u *noteUnmounter, dir string) error {
					_ = u.TearDownAt(ctx, dir)
					return nil
				}}
			},
		},
		{
			defect: "it sets nothing up after a failed TearDown",
			breaks: "faults/teardown-set-up",
			also:   []string{"cancel/all-hangs", "cancel/before", "cancel/during", "cancel/hang"},
			alter: func() alteration {
				var failed memory
				return alteration{tearDownAt: func(ctx context.Context, u *noteUnmounter, dir string) error {
					err := u.TearDownAt(ctx, dir)
					if err != nil {
						failed.add(dir)
					}
					return err
				}, setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					if failed.has(dir) {
						return errors.New("its TearDown failed")
					}
					return m.SetUpAt(ctx, dir, noArgs)
				}}
			},
		},
		{
			defect: "its errors are but text",
			breaks: "faults/cause",
			also:   []string{"cancel/all-hangs", "cancel/before", "cancel/during", "cancel/hang"},
			alter: func() alteration {
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					err := m.SetUpAt(ctx, dir, noArgs)
					switch {
					case err == nil:
						return nil
					case volume.IsUncertain(err):
						return fmt.Errorf("it failed: %v", err)
					}
					return volume.NothingDone(fmt.Errorf("it failed: %v", err))
				}}
			},
		},
	}
}

// later is an error that says when to try again.
type later struct {
	error
	at time.Time
}

func (l later) Unwrap() error      { return l.error }
func (l later) RetryAt() time.Time { return l.at }

func brokenRetry() []broken {
	return []broken{{
		defect: "it wants to be left alone for a day",
		breaks: "faults/retry-at",
		alter: func() alteration {
			var failures atomic.Int64
			return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
				err := m.SetUpAt(ctx, dir, noArgs)
				if err == nil || failures.Add(1) < 3 {
					return err
				}
				return later{err, time.Now().Add(24 * time.Hour)}
			}}
		},
	}}
}

func brokenCancel() []broken {
	return []broken{
		{
			defect: "it does not say that the context had ended",
			breaks: "cancel/before",
			alter: func() alteration {
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					if ctx.Err() != nil {
						return errors.New("not now")
					}
					return m.SetUpAt(ctx, dir, noArgs)
				}}
			},
		},
		{
			defect: "it does not say that it was cancelled",
			breaks: "cancel/during",
			alter: func() alteration {
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					before := ctx.Err()
					err := m.SetUpAt(ctx, dir, noArgs)
					if before == nil && errors.Is(ctx.Err(), context.Canceled) {
						return errors.New("somebody stopped it")
					}
					return err
				}}
			},
		},
		{
			defect: "it does not look at the context",
			breaks: "cancel/hang",
			also:   []string{"faults/retry-at", "cancel/all-hangs"},
			alter: func() alteration {
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					return m.SetUpAt(context.WithoutCancel(ctx), dir, noArgs)
				}}
			},
		},
		{
			defect: "it tries again for an hour",
			breaks: "cancel/all-hangs",
			alter: func() alteration {
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					err := m.SetUpAt(ctx, dir, noArgs)
					if err != nil && ctx.Err() != nil {
						longer, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Hour)
						defer cancel()
						if m.SetUpAt(longer, dir, noArgs) == nil {
							return nil
						}
					}
					return err
				}}
			},
		},
	}
}
