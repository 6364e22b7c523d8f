package cephfs_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/cephcluster"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/cephfs"
)

// A real cluster's file system, by Debian's kernel.
func TestFileSystemOfAClusterInAMachine(t *testing.T) {
	cephcluster.Run(t, func(t *testing.T, c cephcluster.Cluster) {
		node := fakehost.NewOnKernel(t, host.New(host.Config{Via: host.ViaSystemCalls}))
		plugin := cephfs.New(cephfs.Config{Resolver: names{"mon": {"198.51.100.1"}}})
		node.Add(secret("ceph", map[string]string{"key": c.Key}))
		node.Add(secret("wrong", map[string]string{"key": key}))
		if err := plugin.Init(node); err != nil {
			t.Fatal(err)
		}
		share := func(name string, change func(*v1.CephFSVolumeSource)) *volume.Spec {
			spec := volumeOf(change)
			spec.Volume.Name = name
			return spec
		}
		setUp := func(ctx context.Context, spec *volume.Spec, pod string) (string, error) {
			m, err := plugin.NewMounter(spec, fakehost.Pod(pod))
			if err != nil {
				t.Fatal(err)
			}
			return m.GetPath(), m.SetUp(ctx, volume.MounterArgs{})
		}
		must := func(errs ...error) {
			t.Helper()
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
		}
		real := func(s *v1.CephFSVolumeSource) { s.Monitors = []string{cephcluster.Monitor} }
		odd := "a:b @c,d/e"
		top := share("top", real)
		dir, err := setUp(t.Context(), top, "a")
		must(err, os.MkdirAll(filepath.Join(dir, odd), 0o755), os.WriteFile(filepath.Join(dir, odd, "file"), []byte("data"), 0o644))
		again, err := setUp(t.Context(), top, "a")
		must(err)
		if again != dir {
			t.Errorf("set up at %s and %s", dir, again)
		}
		part := share("part", func(s *v1.CephFSVolumeSource) {
			s.Monitors, s.Path, s.ReadOnly = []string{"mon"}, "/"+odd, true
		})
		readOnly, err := setUp(t.Context(), part, "b")
		must(err)
		if data, err := os.ReadFile(filepath.Join(readOnly, "file")); string(data) != "data" || err != nil {
			t.Errorf("the part has %q, %v", data, err)
		}
		if err := os.WriteFile(filepath.Join(readOnly, "other"), nil, 0o600); err == nil {
			t.Error("a read-only volume was written to")
		}
		m, err := plugin.NewMounter(part, fakehost.Pod("b"))
		must(err)
		if _, err := m.GetMetrics(t.Context()); err != nil { // which are those of a manager, and there is none
			t.Error(err)
		}
		for _, file := range []string{"/proc/self/mountinfo", "/proc/mounts", "/proc/keys"} {
			if text, err := os.ReadFile(file); err != nil || strings.Contains(string(text), c.Key) {
				t.Errorf("%s has the key, or %v", file, err)
			}
		}
		for name, test := range map[string]struct {
			change func(*v1.CephFSVolumeSource)
			cause  mount.Cause
		}{
			"wrong key":     {func(s *v1.CephFSVolumeSource) { real(s); s.SecretRef.Name = "wrong" }, mount.ErrTimedOut},
			"no such user":  {func(s *v1.CephFSVolumeSource) { real(s); s.User = "nobody" }, mount.ErrTimedOut},
			"no such path":  {func(s *v1.CephFSVolumeSource) { real(s); s.Path = "/none" }, mount.ErrNoSuchExport},
			"no answer yet": {func(s *v1.CephFSVolumeSource) { s.Monitors = []string{cephcluster.Silent} }, mount.ErrTimedOut},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			at, err := setUp(ctx, share(strings.ReplaceAll(name, " ", "-"), test.change), "c")
			cancel()
			if !errors.Is(err, test.cause) || volume.IsUncertain(err) || strings.Contains(err.Error(), c.Key) || strings.Contains(err.Error(), key) {
				t.Errorf("%s: %v", name, err)
			}
			if isHidden := strings.Contains(err.Error(), "refused key"); isHidden != (name == "wrong key" || name == "no such user") {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := os.Lstat(at); err == nil {
				t.Errorf("%s: %s is left", name, at)
			}
		}
		for name, pod := range map[string]string{"top": "a", "part": "b"} {
			u, err := plugin.NewUnmounter(name, fakehost.Pod(pod).UID)
			must(err, u.TearDown(t.Context()))
		}
		node.AssertNothingMounted(t)
	})
}
