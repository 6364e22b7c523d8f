package nfs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nfsserver"
	"github.com/podvol/podvol/util/testenv/vmtest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/lazyunmount"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

// TestBusyTearDownSparesOtherPods tears a pod's volume down which a process still
// uses, while another pod writes to the same export of a living server.
func TestBusyTearDownSparesOtherPods(t *testing.T) {
	packages := nfsserver.Unpack(t)
	vmtest.Run(t, func(t *testing.T) {
		s := nfsserver.Start(t, packages, nfsserver.Config{Name: "one"})
		s.Put("/data/hello", "hello")
		if err := os.Chmod(s.Path("/data"), 0o777); err != nil {
			t.Fatal(err)
		}
		p := nfs.New(nfs.Config{ForceAfter: time.Second, LazyAfter: 6 * time.Second})
		if err := p.Init(&volume.Host{RootDir: filepath.Join(t.TempDir(), "root"), NodeName: "n", Mounter: host.New(host.Config{})}); err != nil {
			t.Fatal(err)
		}
		going, staying := mounter(t, p, inline(s.Address(), "/data"), "going"), mounter(t, p, inline(s.Address(), "/data"), "staying")
		for _, m := range []volume.Mounter{going, staying} {
			if err := m.SetUp(t.Context(), volume.MounterArgs{}); err != nil {
				t.Fatal(err)
			}
		}
		defer tearDown(t, p, "vol1", "staying")
		busy, err := os.Open(filepath.Join(going.GetPath(), "hello"))
		if err != nil {
			t.Fatal(err)
		}
		defer busy.Close()
		ctx, stop := context.WithCancel(t.Context())
		written := make(chan int)
		go func() {
			n := 0
			for ; ctx.Err() == nil; n++ {
				if err := writeThrough(filepath.Join(staying.GetPath(), "out")); err != nil {
					t.Errorf("write %d of the pod that stays: %v", n, err)
				}
			}
			written <- n
		}()
		start := time.Now()
		err = unmounter(t, p, "vol1", "going").TearDown(t.Context())
		took := time.Since(start)
		stop()
		n := <-written
		t.Logf("torn down after %v: %v; %d writes of the other pod", took, err, n)
		if _, ok := errors.AsType[*lazyunmount.Error](err); !ok || took > 6*time.Second+boundSlack {
			t.Errorf("tear-down of the busy one = %v after %v", err, took)
		}
		if n == 0 {
			t.Error("the other pod has written nothing")
		}
	})
}

// writeThrough writes a megabyte to the server.
func writeThrough(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, 1<<20))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write through: %w", err)
	}
	return nil
}
