package volumetest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
)

func brokenRestart() []broken {
	return []broken{
		{
			defect: "it knows only in memory what is mounted",
			breaks: "restart/from-record",
			alter: func() alteration {
				var up memory
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					if m.path != "" && !up.has(dir) && mountedAt(&m.noteVolume, dir) {
						return mount.Mount(ctx, m.Host.GetMounter(), mount.Request{Source: m.path, Target: dir, Options: []string{"bind", "ro"}})
					}
					err := m.SetUpAt(ctx, dir, noArgs)
					if err == nil {
						up.add(dir)
					}
					return err
				}}
			},
		},
		{
			defect: "it rebuilds specs under another name",
			breaks: "restart/reconstructed",
			also:   []string{"restart/complete", "restart/nothing-left"},
			alter: func() alteration {
				return alteration{construct: func(p *note, ctx context.Context, name, path string) (volume.ReconstructedVolume, error) {
					return p.ConstructVolumeSpec(ctx, name+"-rebuilt", path)
				}}
			},
		},
		{
			defect: "it takes what it guesses for complete",
			breaks: "restart/complete",
			alter: func() alteration {
				return alteration{construct: func(p *note, ctx context.Context, name, path string) (volume.ReconstructedVolume, error) {
					rebuilt, err := p.ConstructVolumeSpec(ctx, name, path)
					rebuilt.Complete = mountedAt(&noteVolume{volume.PodVolume{Host: p.host}, nil}, path)
					return rebuilt, err
				}}
			},
		},
		{
			defect: "it calls a spec complete that lacks an option",
			breaks: "restart/complete",
			suite: func(s *Suite) {
				spec := s.Working[0].Spec
				s.Working = s.Working[:1]
				s.Working[0].Spec = func(n *Node) *volume.Spec {
					given := spec(n)
					given.Volume.FlexVolume.FSType = "ext4"
					return given
				}
			},
			alter: func() alteration { return alteration{construct: constructText} },
		},
		{
			defect: "it calls a spec complete that is set up otherwise",
			breaks: "restart/complete",
			also:   []string{"hostility/canary"}, // the spec has the secret
			suite: func(s *Suite) {
				s.Working = s.Working[:1]
				s.Equal = func(_, _ *volume.Spec) bool { return true }
			},
			alter: func() alteration {
				return alteration{
					volumeName: func(p *note, spec *volume.Spec) (string, error) {
						_, err := p.GetVolumeName(spec)
						return "note", err
					},
					construct: func(p *note, ctx context.Context, name, path string) (volume.ReconstructedVolume, error) {
						rebuilt, err := constructText(p, ctx, name, path)
						flex := rebuilt.Spec.Volume.FlexVolume
						// The text keeps the signature, which is not asked for any more.
						flex.SecretRef, flex.Options = nil, map[string]string{"text": noteText + noteCanary}
						return rebuilt, err
					},
				}
			},
		},
		{
			defect: "it takes an empty directory for complete",
			breaks: "restart/nothing-left",
			alter: func() alteration {
				return alteration{construct: func(p *note, ctx context.Context, name, path string) (volume.ReconstructedVolume, error) {
					rebuilt, err := p.ConstructVolumeSpec(ctx, name, path)
					rebuilt.Complete = !mountedAt(&noteVolume{volume.PodVolume{Host: p.host}, nil}, path)
					return rebuilt, err
				}}
			},
		},
		{
			defect: "it takes a marker on disk for a mount",
			breaks: "restart/rebooted",
			also:   []string{"lifecycle/refresh"},
			alter:  trusting,
		},
	}
}

// constructText rebuilds the suite's inline note, complete where it is mounted.
func constructText(p *note, _ context.Context, name, path string) (volume.ReconstructedVolume, error) {
	return volume.ReconstructedVolume{
		Complete: mountedAt(&noteVolume{volume.PodVolume{Host: p.host}, nil}, path),
		Spec: volume.NewSpecFromVolume(&v1.Volume{Name: name, VolumeSource: v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{
			Driver: noteName, SecretRef: &v1.LocalObjectReference{Name: "signature"}, Options: map[string]string{"text": noteText}}}}),
	}, nil
}

// trusting believes its marker on disk that a volume is mounted.
func trusting() alteration {
	return alteration{
		setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
			if _, err := os.Lstat(m.marker()); err == nil {
				return nil
			}
			if err := m.SetUpAt(ctx, dir, noArgs); err != nil {
				return err
			}
			return errors.Join(os.MkdirAll(filepath.Dir(m.marker()), 0o750), os.WriteFile(m.marker(), nil, 0o600))
		},
		tearDownAt: func(ctx context.Context, u *noteUnmounter, dir string) error {
			return errors.Join(u.unmark(), u.TearDownAt(ctx, dir))
		},
	}
}

// TestHoldingPasses runs the kit on a plugin that has its volume open during a
// call: its death closes that, so that what is mounted is not busy.
func TestHoldingPasses(t *testing.T) {
	Run(t, altered(func() alteration {
		return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
			if err := m.SetUpAt(ctx, dir, noArgs); err != nil || m.path != "" {
				return err
			}
			held, err := os.OpenRoot(dir)
			if err != nil {
				return err
			}
			defer held.Close()
			_, err = m.signature(ctx)
			return err
		}}
	}), noteSuite())
}

var errUnderWay = errors.New("another process is at it")

func brokenCrash() []broken {
	return []broken{
		{
			defect: "it waits for the end of a SetUp that has died",
			breaks: "crash/setup-set-up",
			alter: func() alteration {
				return alteration{
					setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
						return m.marked(refuse, func() error { return m.SetUpAt(ctx, dir, noArgs) })
					},
					tearDownAt: func(ctx context.Context, u *noteUnmounter, dir string) error {
						return errors.Join(u.TearDownAt(ctx, dir), u.unmark())
					},
				}
			},
		},
		{
			defect: "it forgets what a SetUp that died keeps beside the volume",
			breaks: "crash/setup-torn-down",
			alter: func() alteration {
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					return m.marked(replace, func() error { return m.SetUpAt(ctx, dir, noArgs) })
				}}
			},
		},
		{
			defect: "it takes it for granted that the secret can be had",
			breaks: "crash/setup-torn-down",
			also: []string{"faults/retry-at",
				"cancel/all-hangs", "cancel/before", "cancel/during", "cancel/hang", "contract/refused", "crash/setup-set-up", "faults/cause",
				"faults/nothing-done", "faults/refresh", "faults/setup-retried", "faults/setup-torn-down", "hostility/canary",
			},
			alter: func() alteration {
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					if _, err := m.signature(ctx); err != nil {
						panic(err)
					}
					return m.SetUpAt(ctx, dir, noArgs)
				}}
			},
		},
		{
			defect: "it rests before a SetUp whose death leaves something beside the volume",
			breaks: "crash/setup-torn-down",
			alter: func() alteration {
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					// The check must wait for the point, not for the process to be quiet.
					time.Sleep(time.Millisecond)
					return m.marked(replace, func() error { return m.SetUpAt(ctx, dir, noArgs) })
				}}
			},
		},
		{
			defect: "it waits for the end of a TearDown that has died, to set up",
			breaks: "crash/teardown-set-up",
			alter: func() alteration {
				return alteration{
					setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
						if _, err := os.Lstat(m.marker()); err == nil {
							return errUnderWay
						}
						return m.SetUpAt(ctx, dir, noArgs)
					},
					tearDownAt: func(ctx context.Context, u *noteUnmounter, dir string) error {
						return u.marked(replace, func() error { return u.TearDownAt(ctx, dir) })
					},
				}
			},
		},
		{
			defect: "it waits for the end of a TearDown that has died",
			breaks: "crash/teardown-torn-down",
			alter: func() alteration {
				return alteration{
					setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
						return errors.Join(m.SetUpAt(ctx, dir, noArgs), m.unmark())
					},
					tearDownAt: func(ctx context.Context, u *noteUnmounter, dir string) error {
						return u.marked(refuse, func() error { return u.TearDownAt(ctx, dir) })
					},
				}
			},
		},
	}
}

// What to do with a marker that is there already.
const (
	refuse  = os.O_EXCL
	replace = 0
)

// marker is a file that is there while an operation runs.
func (v *noteVolume) marker() string {
	return filepath.Join(v.Host.GetPodPluginDir(v.PodUID, noteName), "m-"+v.Name)
}

func (v *noteVolume) marked(existing int, f func() error) error {
	if err := os.MkdirAll(filepath.Dir(v.marker()), 0o750); err != nil {
		return volume.NothingDone(err)
	}
	file, err := os.OpenFile(v.marker(), os.O_CREATE|os.O_WRONLY|existing, 0o600)
	if err != nil {
		return errUnderWay
	}
	file.Close()
	if err := f(); err != nil {
		// errors.Join would take the mark of NothingDone away.
		_ = v.unmark()
		return err
	}
	return v.unmark()
}

func (v *noteVolume) unmark() error {
	if err := os.Remove(v.marker()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
