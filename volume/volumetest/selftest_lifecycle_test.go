package volumetest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/layout"
)

// memory is what a plugin remembers of its volumes, by their directories.
type memory struct{ dirs sync.Map }

func (m *memory) add(dir string)      { m.dirs.Store(dir, true) }
func (m *memory) remove(dir string)   { m.dirs.Delete(dir) }
func (m *memory) has(dir string) bool { _, there := m.dirs.Load(dir); return there }

var noArgs volume.MounterArgs

func brokenLifecycle() []broken {
	return []broken{
		{
			defect: "it writes something else",
			breaks: "lifecycle/setup",
			also: []string{"faults/retry-at",
				"cancel/all-hangs", "cancel/before", "cancel/during", "cancel/hang", "concurrency/pods", "concurrency/volumes",
				"crash/setup-set-up", "crash/teardown-set-up", "faults/refresh", "faults/setup-retried",
				"faults/teardown-set-up", "hostility/odd-names", "lifecycle/refresh", "lifecycle/setup-again", "lifecycle/setup-at",
				"lifecycle/setup-at-existing-directory", "lifecycle/setup-n-times", "lifecycle/several-pods",
				"lifecycle/several-volumes", "restart/from-record", "restart/rebooted", "restart/reconstructed",
			},
			alter: func() alteration {
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					other := *m
					other.text += "?"
					if m.text == "" {
						other.text = ""
					}
					return other.SetUpAt(ctx, dir, noArgs)
				}}
			},
		},
		{
			defect: "it must make the directory itself",
			breaks: "lifecycle/setup-at-existing-directory",
			also: []string{
				"cancel/all-hangs", "cancel/hang", "crash/setup-set-up", "crash/teardown-set-up", "faults/teardown-set-up",
				"restart/rebooted",
			},
			alter: func() alteration {
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					if _, err := os.Lstat(dir); err == nil && !mountedAt(&m.noteVolume, dir) {
						return volume.Invalid("volume", "is there already")
					}
					return m.SetUpAt(ctx, dir, noArgs)
				}}
			},
		},
		{
			defect: "its SetUpAt does nothing",
			breaks: "lifecycle/setup-at",
			alter: func() alteration {
				return alteration{
					setUp:   func(ctx context.Context, m *noteMounter) error { return m.SetUp(ctx, noArgs) },
					setUpAt: func(context.Context, *noteMounter, string) error { return nil },
				}
			},
		},
		{
			defect: "it mounts each time",
			breaks: "lifecycle/setup-n-times",
			also:   []string{"lifecycle/setup-at", "restart/from-record"},
			alter: func() alteration {
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					if m.path != "" && mountedAt(&m.noteVolume, dir) {
						return mount.Mount(ctx, m.Host.GetMounter(), mount.Request{Source: m.path, Target: dir, Options: []string{"bind", "ro"}})
					}
					return m.SetUpAt(ctx, dir, noArgs)
				}}
			},
		},
		{
			defect: "it never looks at its secret again",
			breaks: "lifecycle/refresh",
			alter: func() alteration {
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					if _, err := os.Stat(filepath.Join(dir, noteFile)); err == nil {
						return nil
					}
					return m.SetUpAt(ctx, dir, noArgs)
				}}
			},
		},
		{
			defect: "it does not know that it is read-only",
			breaks: "lifecycle/read-only",
			suite:  func(s *Suite) { s.Working[1].Want.ReadOnly = false },
			alter: func() alteration {
				return alteration{attributes: func(*noteMounter) volume.Attributes { return volume.Attributes{} }}
			},
		},
		{
			defect: "it says that it is read-only, and is not",
			breaks: "lifecycle/read-only",
			suite:  func(s *Suite) { s.Working[1].Want.Mount = nil },
			alter: func() alteration {
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					writable := *m
					writable.readOnly = false
					return writable.SetUpAt(ctx, dir, noArgs)
				}}
			},
		},
		{
			defect: "it tears only what it wrote itself down",
			breaks: "lifecycle/teardown",
			also:   []string{"hostility/links-inside", "lifecycle/several-pods", "lifecycle/source-kept", "ownership/progress"},
			alter: func() alteration {
				return alteration{tearDownAt: func(ctx context.Context, u *noteUnmounter, dir string) error {
					entries, _ := os.ReadDir(dir)
					for _, e := range entries {
						if e.Name() != noteFile {
							return errors.New(e.Name() + " is not mine")
						}
					}
					return u.TearDownAt(ctx, dir)
				}}
			},
		},
		{
			defect: "it tears down just once",
			breaks: "lifecycle/teardown-n-times",
			also:   []string{"concurrency/questions", "faults/teardown-retried", "lifecycle/source-kept"},
			alter: func() alteration {
				var down memory
				return alteration{tearDownAt: func(ctx context.Context, u *noteUnmounter, dir string) error {
					if down.has(dir) {
						return errors.New("not mounted")
					}
					down.add(dir)
					return u.TearDownAt(ctx, dir)
				}, setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					down.remove(dir)
					return m.SetUpAt(ctx, dir, noArgs)
				}}
			},
		},
		{
			defect: "it tears down only what it remembers",
			breaks: "lifecycle/teardown-never-set-up",
			also: []string{
				"crash/setup-torn-down", "crash/teardown-torn-down", "restart/from-record", "restart/nothing-left",
				"restart/rebooted", "restart/reconstructed",
			},
			alter: func() alteration {
				var up memory
				return alteration{tearDownAt: func(ctx context.Context, u *noteUnmounter, dir string) error {
					if !up.has(dir) {
						return errors.New("not set up")
					}
					return u.TearDownAt(ctx, dir)
				}, setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					up.add(dir)
					return m.SetUpAt(ctx, dir, noArgs)
				}}
			},
		},
		{
			defect: "what was torn down stays so",
			breaks: "lifecycle/setup-again",
			also: []string{
				"cancel/all-hangs", "cancel/before", "cancel/during", "cancel/hang", "concurrency/pods",
				"concurrency/questions", "concurrency/volumes", "faults/teardown-set-up",
			},
			alter: func() alteration {
				var down memory
				return alteration{tearDownAt: func(ctx context.Context, u *noteUnmounter, dir string) error {
					down.add(dir)
					return u.TearDownAt(ctx, dir)
				}, setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					if down.has(dir) {
						return volume.Invalid("volume", "was torn down")
					}
					return m.SetUpAt(ctx, dir, noArgs)
				}}
			},
		},
		{
			defect: "it tears the volumes of all pods down",
			breaks: "lifecycle/several-pods",
			maybe:  []string{"concurrency/pods"},
			alter: func() alteration {
				return alteration{tearDownAt: func(ctx context.Context, u *noteUnmounter, dir string) error {
					same := func(target string) bool { return filepath.Base(target) == filepath.Base(dir) }
					return errors.Join(tearDownAll(ctx, u, same), u.TearDownAt(ctx, dir))
				}}
			},
		},
		{
			defect: "it tears volumes with longer names down",
			breaks: "lifecycle/several-volumes",
			alter: func() alteration {
				return alteration{tearDownAt: func(ctx context.Context, u *noteUnmounter, dir string) error {
					longer := func(target string) bool { return strings.HasPrefix(target, dir) }
					return errors.Join(tearDownAll(ctx, u, longer), u.TearDownAt(ctx, dir))
				}}
			},
		},
		{
			defect: "it removes directories in the volume before unmounting",
			breaks: "lifecycle/source-kept",
			also:   []string{"hostility/link-as-volume", "hostility/link-between-calls"},
			alter: func() alteration {
				return alteration{tearDownAt: func(ctx context.Context, u *noteUnmounter, dir string) error {
					entries, _ := os.ReadDir(dir)
					for _, e := range entries {
						if !e.IsDir() {
							continue
						}
						if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
							return err
						}
					}
					return u.TearDownAt(ctx, dir)
				}}
			},
		},
	}
}

func mountedAt(v *noteVolume, dir string) bool {
	mounts := table.Of(v.Host.GetMounter())
	_, mounted, err := mounts.At(dir)
	return mounted && err == nil
}

// tearDownAll tears every mount of the plugin with such a target down.
func tearDownAll(ctx context.Context, u *noteUnmounter, wanted func(target string) bool) error {
	mounts := table.Of(u.Host.GetMounter())
	entries, err := mounts.All()
	for _, e := range entries {
		if strings.Contains(e.Target, layout.EscapeQualifiedName(noteName)) && wanted(e.Target) {
			err = errors.Join(err, podmount.TearDown(ctx, u.Host.GetMounter(), e.Target, mount.UnmountOptions{}))
		}
	}
	return err
}

func undone(ctx context.Context, m *noteMounter, dir string, err error) error {
	return errors.Join(err, podmount.Undo(ctx, m.Host.GetMounter(), dir))
}
