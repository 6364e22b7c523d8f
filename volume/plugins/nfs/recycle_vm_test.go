package nfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/removetree"
	"github.com/podvol/podvol/util/testenv/nfsserver"
	"github.com/podvol/podvol/util/testenv/vmtest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/reclaim"
)

// kernelRecycler is a plugin on the machine's own kernel, and the server it mounts.
type kernelRecycler struct {
	server *nfsserver.Server
	path   string
	vers   string
}

func (r kernelRecycler) spec() *volume.Spec {
	return releasedSpec(func(pv *v1.PersistentVolume) {
		pv.Spec.NFS = &v1.NFSVolumeSource{Server: r.server.Address(), Path: r.path}
		pv.Spec.MountOptions = []string{"vers=" + r.vers, "nolock"}
	})
}

func (r kernelRecycler) plugin(t *testing.T, action RecycleAction) *plugin {
	t.Helper()
	p := New(Config{ForceAfter: 2 * time.Second, LazyAfter: 4 * time.Second, Recycle: RecycleConfig{Embedded: EmbeddedRecycling{
		Enabled: true, Action: action, ProgressEvery: time.Nanosecond, ArchiveShare: "/exports", ArchiveDir: "archive",
	}}}).(*plugin)
	host := &volume.Host{RootDir: nfsserver.DetachBelow(t, t.TempDir()), NodeName: "n", Mounter: host.New(host.Config{}), Releases: &verdicts{}}
	if err := p.Init(host); err != nil {
		t.Fatal(err)
	}
	return p
}

func (r kernelRecycler) recycle(t *testing.T, action RecycleAction) (events, error) {
	t.Helper()
	p := r.plugin(t, action)
	var heard events
	err := p.Recycle(t.Context(), "pv1", r.spec(), heard.record)
	wantNoWork(t, p)
	return heard, err
}

// wantNoWork fails if the plugin has left a mount of its own.
func wantNoWork(t *testing.T, p *plugin) {
	t.Helper()
	if left, err := os.ReadDir(p.GetWorkDir()); err == nil && len(left) > 0 {
		t.Errorf("left in the work directory: %v", left)
	}
}

func TestRecyclingRealExports(t *testing.T) {
	packages := nfsserver.Unpack(t)
	vmtest.Run(t, func(t *testing.T) {
		exports := []nfsserver.Export{{Path: "/exports"}, {Path: "/exports/pv1"}, {Path: "/squashed", RootSquash: true}, {Path: "/ro", ReadOnly: true}}
		s := nfsserver.Start(t, packages, nfsserver.Config{Name: "one", Exports: exports})
		for _, version := range []string{"3", "4.0", "4.2"} {
			t.Run("version "+version, func(t *testing.T) { testRecycling(t, kernelRecycler{s, "/exports/pv1", version}) })
		}
		t.Run("ganesha", func(t *testing.T) {
			// To its clients an export below another is another file system, where no
			// archive can be.
			other := nfsserver.Start(t, packages, nfsserver.Config{Kind: nfsserver.Ganesha, Name: "other", Exports: exports[:1]})
			if err := os.Mkdir(other.Path("/exports/pv1"), 0o755); err != nil {
				t.Fatal(err)
			}
			testRecycling(t, kernelRecycler{other, "/exports/pv1", "4.2"})
		})
		t.Run("root squashed", func(t *testing.T) { testSquashed(t, kernelRecycler{s, "/squashed", "4.2"}) })
		t.Run("read-only", func(t *testing.T) {
			s.Put("/ro/kept", "")
			_, err := kernelRecycler{s, "/ro", "4.2"}.recycle(t, RecycleDelete)
			if err == nil || !strings.Contains(err.Error(), "read-only to this node") {
				t.Errorf("Recycle = %v", err)
			}
			wantFiles(t, s.Path("/ro"), "kept")
		})
		t.Run("open file", func(t *testing.T) { testOpenFile(t, kernelRecycler{s, "/exports/pv1", "4.2"}) })
		t.Run("script in busybox", func(t *testing.T) { testBusybox(t) })
		t.Run("silent", func(t *testing.T) { testSilentServer(t, kernelRecycler{s, "/exports/pv1", "4.2"}) })
	})
}

// fill puts into the volume what a claim may leave.
func (r kernelRecycler) fill(t *testing.T, files int) {
	t.Helper()
	for n := range files {
		r.server.Put(fmt.Sprintf("%s/%d/%d", r.path, n%3, n), "data")
	}
	r.server.Put(r.path+"/.hidden", "data")
	r.server.Put("/exports/neighbour/kept", "data")
	if err := os.Symlink("../neighbour", r.server.Path(r.path+"/link")); err != nil {
		t.Fatal(err)
	}
}

func testRecycling(t *testing.T, r kernelRecycler) {
	dir := r.server.Path(r.path)
	if err := os.Chmod(dir, 0o2770); err != nil {
		t.Fatal(err)
	}
	r.fill(t, 300)
	_, err := r.recycle(t, RecycleDryRun)
	if e, ok := errors.AsType[*reclaim.DryRunError](err); !ok || e.Entries != 305 {
		t.Errorf("dry run: %v", err)
	}
	heard, err := r.recycle(t, RecycleDelete)
	if err != nil || !heard.contain("305 entries deleted") {
		t.Errorf("Recycle = %v", err)
	}
	wantFiles(t, dir)
	r.fill(t, 3)
	heard, err = r.recycle(t, RecycleArchive)
	if err != nil || !heard.contain("5 entries moved") {
		t.Errorf("Recycle = %v", err)
	}
	wantFiles(t, dir)
	archives, err := os.ReadDir(r.server.Path("/exports/archive"))
	if err != nil || len(archives) == 0 {
		t.Fatalf("archives: %v, %v", archives, err)
	}
	latest := archives[len(archives)-1].Name()
	wantFiles(t, r.server.Path("/exports/archive/"+latest), ".hidden", "0/0", "1/1", "2/2", "link")
	wantFiles(t, r.server.Path("/exports/neighbour"), "kept")
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o770 {
		t.Errorf("the root is %v, %v", info.Mode(), err)
	}
}

// testOpenFile deletes what somebody on this node has open, who is no pod: the
// client keeps it under another name until it is closed.
func testOpenFile(t *testing.T, r kernelRecycler) {
	r.server.Put(r.path+"/log", "data")
	m, dir := host.New(host.Config{}), t.TempDir()
	if err := m.Mount(r.server.Address()+":"+r.path, dir, "nfs", []string{"vers=" + r.vers}); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.recycle(t, RecycleDelete)
	open, ok := errors.AsType[*removetree.OpenError](err)
	if !ok || !strings.Contains(open.Path, "/.nfs") || !errors.Is(err, unix.EBUSY) {
		t.Errorf("Recycle = %v", err)
	}
	if err := errors.Join(file.Close(), m.Unmount(dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.recycle(t, RecycleDelete); err != nil {
		t.Errorf("once it is closed: %v", err)
	}
	wantFiles(t, r.server.Path(r.path))
}

// testBusybox runs the built-in pod's script with the tools of its image.
func testBusybox(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	for _, name := range []string{"sh", "find", "rm", "rmdir", "ls", "test"} {
		if err := os.Symlink(busybox, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin)
	testRecyclerScript(t, filepath.Join(bin, "sh"))
}

// Root of the node is nobody there: it deletes what everybody may.
func testSquashed(t *testing.T, r kernelRecycler) {
	dir := r.server.Path(r.path)
	r.server.Put(r.path+"/theirs", "data")
	_, err := r.recycle(t, RecycleDelete)
	if _, ok := errors.AsType[*reclaim.IncompleteError](err); !ok || !strings.Contains(err.Error(), "no_root_squash") {
		t.Errorf("Recycle = %v", err)
	}
	wantFiles(t, dir, "theirs")
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := r.recycle(t, RecycleDelete); err != nil {
		t.Errorf("Recycle = %v", err)
	}
	wantFiles(t, dir)
}

// The server falls silent in the middle: the wait ends, nothing is left on the
// node, and another try finishes once it answers again.
func testSilentServer(t *testing.T, r kernelRecycler) {
	const files = 600
	r.fill(t, files)
	p := r.plugin(t, RecycleDelete)
	ctx, end := context.WithCancelCause(t.Context())
	defer end(nil)
	half, silent, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var once sync.Once
	go func() {
		result <- p.Recycle(ctx, "pv1", r.spec(), func(_, message string) {
			if strings.Contains(message, fmt.Sprint(files/2)+" entries") {
				once.Do(func() {
					close(half)
					<-silent
				})
			}
		})
	}()
	select {
	case <-half:
	case err := <-result:
		t.Fatalf("Recycle = %v", err)
	}
	r.server.Drop()
	close(silent)
	// Only now: by emulation, nobody knows how long the first half takes.
	late := time.AfterFunc(10*time.Second, func() { end(context.DeadlineExceeded) })
	defer late.Stop()
	start := time.Now()
	err := <-result
	incomplete, ok := errors.AsType[*reclaim.IncompleteError](err)
	if !ok || incomplete.Done < files/2 || incomplete.Done >= files || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Recycle = %v", err)
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("it took %v", took)
	}
	r.server.Pass()
	if _, err := r.recycle(t, RecycleDelete); err != nil {
		t.Errorf("once it answers again: %v", err)
	}
	wantFiles(t, r.server.Path(r.path))
}
