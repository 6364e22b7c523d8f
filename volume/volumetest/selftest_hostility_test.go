package volumetest

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// exclusively is SetUpAt for plugins that fail while another SetUp with the
// same key is under way.
func exclusively(key func(*noteMounter) string) func() alteration {
	return func() alteration {
		var busy sync.Map
		return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
			if _, other := busy.LoadOrStore(key(m), true); other {
				return volume.NothingDone(errors.New("busy"))
			}
			defer busy.Delete(key(m))
			yield() // long enough to meet the others
			return m.SetUpAt(ctx, dir, noArgs)
		}}
	}
}

// yield lets others run for a while. It does not sleep: in a bubble that would
// take no time.
func yield() {
	for range 10_000 {
		runtime.Gosched()
	}
}

func brokenConcurrency() []broken {
	return []broken{
		{
			defect: "it serves one pod at a time",
			breaks: "concurrency/pods",
			alter:  exclusively(func(m *noteMounter) string { return m.Name }),
		},
		{
			defect: "it serves one volume of a pod at a time",
			breaks: "concurrency/volumes",
			alter:  exclusively(func(m *noteMounter) string { return string(m.PodUID) }),
		},
		{
			defect: "it answers nothing while it is at work",
			breaks: "concurrency/questions",
			alter: func() alteration {
				var work sync.RWMutex
				return alteration{volumeName: func(p *note, spec *volume.Spec) (string, error) {
					if !work.TryRLock() {
						return "", errors.New("busy")
					}
					defer work.RUnlock()
					return p.GetVolumeName(spec)
				}, setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					err := m.SetUpAt(ctx, dir, noArgs)
					work.Lock()
					defer work.Unlock()
					yield() // long enough to be asked
					return err
				}}
			},
		},
	}
}

func brokenHostility() []broken {
	return []broken{
		{
			defect: "its unmounters go wherever a name leads",
			breaks: "hostility/names",
			alter: func() alteration {
				return alteration{newUnmounter: func(p *note, name string, uid types.UID) (*noteUnmounter, error) {
					if name == "" || uid == "" {
						return p.newUnmounter(name, uid)
					}
					return &noteUnmounter{noteVolume{volume.PodVolume{Host: p.host, Plugin: noteName, Name: name, PodUID: uid}, &p.meter}}, nil
				}}
			},
		},
		{
			defect: "it stumbles over a space",
			breaks: "hostility/odd-names",
			alter: func() alteration {
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					if strings.Contains(m.Name, " ") {
						return volume.Invalid("volume name", "has a space")
					}
					return m.SetUpAt(ctx, dir, noArgs)
				}}
			},
		},
		{
			defect: "it mounts where a link leads",
			breaks: "hostility/link-as-volume",
			alter: func() alteration {
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					if real, err := filepath.EvalSymlinks(dir); err == nil && !mountedAt(&m.noteVolume, dir) {
						dir = real
					}
					return m.SetUpAt(ctx, dir, noArgs)
				}}
			},
		},
		{
			defect: "it changes the directory by its path after asking for the secret",
			breaks: "hostility/link-between-calls",
			also:   []string{"hostility/link-as-volume"},
			alter:  func() alteration { return alteration{setUpAt: changeMode} },
		},
		{
			defect: "it writes by the volume's path after mounting",
			breaks: "hostility/link-between-calls",
			alter:  func() alteration { return alteration{setUpAt: writeByPath} },
		},
		{
			defect: "it empties what it has unmounted by its path",
			breaks: "hostility/link-between-calls",
			also:   []string{"hostility/link-as-volume"},
			on:     onKernel,
			alter: func() alteration {
				return alteration{tearDownAt: func(ctx context.Context, u *noteUnmounter, dir string) error {
					if mountedAt(&u.noteVolume, dir) {
						if _, err := mount.Unmount(ctx, u.Host.GetMounter(), dir, mount.UnmountOptions{}); err != nil {
							return err
						}
					}
					entries, _ := os.ReadDir(dir)
					for _, e := range entries {
						_ = os.RemoveAll(filepath.Join(dir, e.Name()))
					}
					return u.TearDownAt(ctx, dir)
				}}
			},
		},
		{
			defect: "it opens what is in the volume to all, links too",
			breaks: "hostility/links-inside",
			alter: func() alteration {
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					if err := m.SetUpAt(ctx, dir, noArgs); err != nil || m.path != "" {
						return err
					}
					entries, err := os.ReadDir(dir)
					for _, e := range entries {
						if e.Name() != noteFile {
							err = errors.Join(err, os.Chmod(filepath.Join(dir, e.Name()), 0o777))
						}
					}
					return err
				}}
			},
		},
		{
			defect: "it explains a failure by the secret",
			breaks: "hostility/canary",
			alter: func() alteration {
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					err := m.SetUpAt(ctx, dir, noArgs)
					if err == nil {
						return nil
					}
					secret, _ := m.signature(ctx)
					return fmt.Errorf("with %s: %w", secret, err)
				}}
			},
		},
		tells("it logs the secret", func(secret string) { slog.Debug("read", "secret", secret) }),
		tells("it logs the secret the old way", func(secret string) { log.Print(secret) }),
		tells("it prints the secret", func(secret string) { fmt.Println(secret) }),
		{
			defect: "its errors keep the secret",
			breaks: "hostility/canary",
			alter: func() alteration {
				return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
					err := m.SetUpAt(ctx, dir, noArgs)
					if err == nil {
						return nil
					}
					secret, _ := m.signature(ctx)
					return &secretiveError{err, string(secret)}
				}}
			},
		},
		{
			defect: "it keeps the secret beside the volume",
			breaks: "hostility/canary",
			alter: func() alteration {
				return alteration{
					setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
						if err := m.SetUpAt(ctx, dir, noArgs); err != nil {
							return err
						}
						secret, err := m.signature(ctx)
						return errors.Join(err, os.MkdirAll(filepath.Dir(m.marker()), 0o750), os.WriteFile(m.marker(), secret, 0o600))
					},
					tearDownAt: func(ctx context.Context, u *noteUnmounter, dir string) error {
						return errors.Join(u.unmark(), u.TearDownAt(ctx, dir))
					},
				}
			},
		},
	}
}

// tells is a plugin that tells the secret to somebody once it is set up.
func tells(defect string, tell func(secret string)) broken {
	return broken{defect: defect, breaks: "hostility/canary", alter: func() alteration {
		return alteration{setUpAt: func(ctx context.Context, m *noteMounter, dir string) error {
			err := m.SetUpAt(ctx, dir, noArgs)
			if err == nil {
				if secret, _ := m.signature(ctx); len(secret) > 0 {
					tell(string(secret))
				}
			}
			return err
		}}
	}}
}

// secretiveError says nothing of the secret that it has.
type secretiveError struct {
	error
	secret string
}

func (e *secretiveError) Unwrap() error { return e.error }

// changeMode makes the directory and changes its mode before the tmpfs hides
// it; in between it asks for the secret.
func changeMode(ctx context.Context, m *noteMounter, dir string) error {
	if m.path != "" || mountedAt(&m.noteVolume, dir) {
		return m.SetUpAt(ctx, dir, noArgs)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return volume.NothingDone(err)
	}
	if _, err := m.signature(ctx); err != nil {
		return volume.NothingDone(errors.Join(err, os.Remove(dir)))
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return err
	}
	err := m.SetUpAt(ctx, dir, noArgs)
	if err != nil {
		_ = os.Remove(dir)
	}
	return err
}

// writeByPath is SetUpAt that follows a link in the place of a tmpfs.
func writeByPath(ctx context.Context, m *noteMounter, dir string) error {
	if m.path != "" {
		return m.SetUpAt(ctx, dir, noArgs)
	}
	signature, err := m.signature(ctx)
	if err != nil {
		return volume.NothingDone(err)
	}
	request := mount.Request{Source: "tmpfs", Target: dir, FSType: "tmpfs", Options: []string{"mode=0755"}}
	if _, err := podmount.SetUp(ctx, m.Host.GetMounter(), request, func(e mount.Entry) bool { return e.FSType == "tmpfs" }); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, noteFile), append([]byte(m.text), signature...), 0o640)
}

func brokenMetrics() []broken {
	return []broken{
		{
			defect: "it has more room than there is",
			breaks: "metrics/sane",
			alter: func() alteration {
				return alteration{metrics: func(ctx context.Context, v *noteVolume) (*volume.Metrics, error) {
					m, err := v.GetMetrics(ctx)
					if err == nil {
						m.Available = new(m.Capacity.DeepCopy())
						m.Available.Add(resource.MustParse("1"))
					}
					return m, err
				}}
			},
		},
		{
			defect: "it writes a file to measure",
			breaks: "metrics/sane",
			on:     onKernel, // the fake only records that a mount is read-only
			maybe:  []string{"concurrency/questions"},
			alter: func() alteration {
				return alteration{metrics: func(ctx context.Context, v *noteVolume) (*volume.Metrics, error) {
					probe := filepath.Join(v.GetPath(), ".probe")
					if mountedAt(v, v.GetPath()) {
						if err := errors.Join(os.WriteFile(probe, nil, 0o600), os.Remove(probe)); err != nil {
							return nil, err
						}
					}
					return v.GetMetrics(ctx)
				}}
			},
		},
		{
			defect: "it measures the node where there is no volume",
			breaks: "metrics/not-set-up",
			alter: func() alteration {
				return alteration{metrics: func(ctx context.Context, v *noteVolume) (*volume.Metrics, error) {
					if mountedAt(v, v.GetPath()) {
						return v.GetMetrics(ctx)
					}
					return v.meter.FileSystem(ctx, "/")
				}}
			},
		},
		{
			defect: "it asks for a secret to measure, however long that takes",
			breaks: "metrics/bounded",
			alter: func() alteration {
				return alteration{metrics: func(ctx context.Context, v *noteVolume) (*volume.Metrics, error) {
					secrets, err := volume.Role[volume.SecretGetter](v.Host)
					if err != nil {
						return nil, err
					}
					if _, err := secrets.GetSecret(context.WithoutCancel(ctx), "default", "signature"); err != nil {
						return nil, err
					}
					return v.GetMetrics(ctx)
				}}
			},
		},
	}
}
