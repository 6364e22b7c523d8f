package emptydir_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/silentfuse"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/emptydir"
)

func TestKernelMedia(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		root := t.TempDir()
		p := emptydir.New()
		if err := p.Init(&volume.Host{RootDir: root, Mounter: host.New(host.Config{})}); err != nil {
			t.Fatal(err)
		}
		for _, medium := range []v1.StorageMedium{"", memory} {
			pod := fakehost.Pod("web" + string(medium))
			m := mounter(t, p, spec(medium, "1Mi"), pod)
			setUp(t, m, volume.MounterArgs{})
			setUp(t, m, volume.MounterArgs{})
			err := os.WriteFile(filepath.Join(m.GetPath(), "big"), make([]byte, 2<<20), 0o600)
			if limited := errors.Is(err, unix.ENOSPC); limited != (medium == memory) {
				t.Errorf("medium %q: writing more than the limit: %v", medium, err)
			}
			metrics, err := m.GetMetrics(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if used := metrics.Used.Value(); used < 1<<20 || used > 3<<20 {
				t.Errorf("medium %q: %d bytes used", medium, used)
			}
			if medium == memory && metrics.Capacity.Cmp(resource.MustParse("1Mi")) != 0 {
				t.Errorf("capacity %v", metrics.Capacity)
			}
			rebuilt, err := p.ConstructVolumeSpec(t.Context(), "cache", m.GetPath())
			if err != nil || rebuilt.Spec.Volume.EmptyDir.Medium != medium {
				t.Errorf("ConstructVolumeSpec = %+v, %v", rebuilt, err)
			}
			if medium == memory {
				setUp(t, mounter(t, p, spec(medium, "4Mi"), pod), volume.MounterArgs{})
				if err := os.WriteFile(filepath.Join(m.GetPath(), "big"), make([]byte, 2<<20), 0o600); err != nil {
					t.Errorf("after the limit was raised: %v", err)
				}
			}
			tearDown(t, p, pod)
			tearDown(t, p, pod)
			if _, err := os.Lstat(m.GetPath()); err == nil {
				t.Errorf("medium %q: the directory is left", medium)
			}
		}
	})
}

// A program of the pod may have mounted a file server at the volume that is dead, or hangs.
func TestKernelTearDownAsksNoFileServer(t *testing.T) {
	silentfuse.Need(t)
	nstest.Run(t, func(t *testing.T) {
		for _, hung := range []bool{false, true} {
			p := emptydir.New()
			testtool.Must(t, p.Init(&volume.Host{RootDir: t.TempDir(), Mounter: host.New(host.Config{})}))
			pod := fakehost.Pod("web")
			m := mounter(t, p, spec("", "1Mi"), pod)
			setUp(t, m, volume.MounterArgs{})
			server, err := silentfuse.Mount("silent", m.GetPath())
			testtool.Must(t, err)
			defer server.Close()
			if server.FallSilent(); !hung {
				server.Close()
			}
			u, err := p.NewUnmounter("cache", pod.UID)
			testtool.Must(t, err)
			done := make(chan error, 1)
			go func() { done <- u.TearDown(t.Context()) }()
			select {
			case err = <-done:
			case question := <-server.Asked():
				t.Errorf("a server that hangs was asked question %d", question)
				server.Close()
				err = <-done
			}
			if err != nil {
				t.Errorf("hung %v: TearDown = %v", hung, err)
			}
		}
	})
}
