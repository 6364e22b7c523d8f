package glusterfs_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/glusterserver"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/glusterfs"
	"github.com/podvol/podvol/volume/volumetest"
)

// node is a node beside a server.
type node struct {
	*fakehost.Host
	t      *testing.T
	plugin volume.VolumePlugin
}

func newNode(t *testing.T, config glusterfs.Config) *node {
	config.TrustPodNamespaces = true
	n := &node{fakehost.NewOnKernel(t, host.New(host.Config{})), t, glusterfs.New(config)}
	n.Add(endpoints("default", "gluster", glusterserver.Address, "192.0.2.9"))
	testtool.Must(t, n.plugin.Init(n))
	return n
}

// pod is a pod's volume "vol" of a path.
func (n *node) pod(name, path string, readOnly bool) (volume.Mounter, volume.Unmounter, string) {
	n.t.Helper()
	spec := volumetest.Inline(v1.VolumeSource{Glusterfs: &v1.GlusterfsVolumeSource{EndpointsName: "gluster", Path: path, ReadOnly: readOnly}})(nil)
	pod := fakehost.Pod(name, *spec.Volume)
	m, err := n.plugin.NewMounter(spec, pod)
	testtool.Must(n.t, err)
	u, err := n.plugin.NewUnmounter(spec.Name(), pod.UID)
	testtool.Must(n.t, err)
	return m, u, m.GetPath()
}

// clients are the processes of a directory: the client, and its helper that unmounts, in the
// order of their numbers.
func clients(t *testing.T, dir string) []int {
	t.Helper()
	return running(t, "glusterfs", dir)
}

// running are the processes of a program whose last argument is a directory.
func running(t *testing.T, name, dir string) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	testtool.Must(t, err)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		line, readErr := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		program, _, _ := bytes.Cut(line, []byte{0})
		if err == nil && readErr == nil && bytes.HasSuffix(line, append([]byte(dir), 0)) && filepath.Base(string(program)) == name {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// server is the one of them that serves the mount: it has threads.
func server(t *testing.T, dir string) int {
	t.Helper()
	for _, pid := range clients(t, dir) {
		if tasks, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task")); err == nil && len(tasks) > 1 {
			return pid
		}
	}
	t.Fatalf("no client serves %s", dir)
	return 0
}

func kill(t *testing.T, signal unix.Signal, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		testtool.Must(t, unix.Kill(pid, signal))
	}
	for _, pid := range pids {
		for signal == unix.SIGSTOP && !isStopped(t, pid) && t.Context().Err() == nil {
		}
	}
}

// isStopped reports whether all threads of a process are stopped.
func isStopped(t *testing.T, pid int) bool {
	t.Helper()
	stats, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task/*/stat"))
	testtool.Must(t, err)
	for _, path := range stats {
		if stat, err := os.ReadFile(path); err == nil && !bytes.Contains(stat, []byte(") T ")) {
			return false
		}
	}
	return true
}

// wantGone fails where something of a volume is left.
func (n *node) wantGone(dir string) {
	n.t.Helper()
	if _, mounted, err := table.Of(n.GetMounter()).At(dir); mounted || err != nil {
		n.t.Errorf("%s is mounted: %v, %v", dir, mounted, err)
	}
	if left := clients(n.t, dir); len(left) > 0 {
		n.t.Errorf("the clients %v of %s are left", left, dir)
	}
	err := filepath.WalkDir(n.RootDir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && (path == dir || !e.IsDir()) {
			n.t.Errorf("%s is left", path)
		}
		return err
	})
	testtool.Must(n.t, err)
}

// All tests share a server, which takes seconds to start.
func TestOnAServer(t *testing.T) {
	glusterserver.Run(t, func(t *testing.T, s *glusterserver.Server) {
		s.NewVolume(t, "data")
		t.Run("life", life)
		t.Run("a client that dies", clientDies)
		t.Run("a client that dies and unmounts", clientDiesAndUnmounts)
		t.Run("a client that hangs", clientHangs)
		t.Run("bricks that are away", func(t *testing.T) { bricksAway(t, s) })
		t.Run("a server that does not answer", func(t *testing.T) { serverHangs(t, s) })
		t.Run("no such volume", noSuchVolume)
		t.Run("outlives its agent", outlivesAgent)
		for _, program := range []string{"mount", "glusterfs"} {
			t.Run("an agent killed while "+program+" runs", func(t *testing.T) { agentKilled(t, s, program) })
		}
	})
}

func life(t *testing.T) {
	n := newNode(t, glusterfs.Config{})
	writer, writerEnd, at := n.pod("writer", "data", false)
	reader, readerEnd, readerAt := n.pod("reader", "/data/sub", true)
	for range 2 {
		testtool.Must(t, writer.SetUp(t.Context(), volume.MounterArgs{}))
	}
	testtool.Must(t, os.Mkdir(filepath.Join(at, "sub"), 0o755))
	testtool.Must(t, os.WriteFile(filepath.Join(at, "sub/file"), []byte("hello"), 0o644))
	testtool.Must(t, reader.SetUp(t.Context(), volume.MounterArgs{}))
	if got, err := os.ReadFile(filepath.Join(readerAt, "file")); string(got) != "hello" || err != nil {
		t.Errorf("the other pod reads %q, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(readerAt, "new"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("the read-only pod's write: %v", err)
	}
	if metrics, err := writer.GetMetrics(t.Context()); err != nil || metrics.Capacity.Value() <= 0 {
		t.Errorf("metrics %+v, %v", metrics, err)
	}
	rebuilt, err := n.plugin.ConstructVolumeSpec(t.Context(), "vol", readerAt)
	if err != nil || rebuilt.Complete || rebuilt.Spec.Volume.Glusterfs.Path != "/data/sub" || !rebuilt.Spec.Volume.Glusterfs.ReadOnly {
		t.Errorf("rebuilt as %+v, %v", rebuilt, err)
	}
	log := filepath.Join(n.GetPodPluginDir("uid-of-writer", glusterfs.PluginName), "vol", "client.log")
	if info, err := os.Stat(log); err != nil || info.Mode() != 0o600 {
		t.Errorf("the log: %v, %v", info, err)
	}
	testtool.Must(t, os.Truncate(log, 2<<20))
	_, err = writer.GetMetrics(t.Context())
	testtool.Must(t, err)
	if info, err := os.Stat(log); err != nil || info.Size() >= 1<<20 {
		t.Errorf("a large log after it was measured: %v, %v", info, err)
	}
	for range 2 {
		testtool.Must(t, readerEnd.TearDown(t.Context()))
	}
	if got, err := os.ReadFile(filepath.Join(at, "sub/file")); string(got) != "hello" || err != nil {
		t.Errorf("after the other pod's end: %q, %v", got, err)
	}
	testtool.Must(t, writerEnd.TearDown(t.Context()))
	n.wantGone(at)
	n.wantGone(readerAt)
}

func clientDies(t *testing.T) {
	n := newNode(t, glusterfs.Config{})
	m, u, at := n.pod("a", "data", false)
	other, otherEnd, otherAt := n.pod("b", "data", false)
	testtool.Must(t, m.SetUp(t.Context(), volume.MounterArgs{}))
	testtool.Must(t, other.SetUp(t.Context(), volume.MounterArgs{}))
	testtool.Must(t, os.WriteFile(filepath.Join(at, "file"), []byte("hello"), 0o644))
	kill(t, unix.SIGKILL, clients(t, at)...) // with the helper that would unmount
	awaitDead(t, at)
	if _, err := m.GetMetrics(t.Context()); !errors.Is(err, unix.ENOTCONN) || !strings.Contains(err.Error(), "is dead") {
		t.Errorf("metrics of a dead client: %v", err)
	}
	held, err := os.Open(at) // as a process that is there still holds it
	if err == nil {
		defer held.Close()
	}
	testtool.Must(t, m.SetUp(t.Context(), volume.MounterArgs{}))
	if got, err := os.ReadFile(filepath.Join(at, "file")); string(got) != "hello" || err != nil {
		t.Errorf("after it was set up again: %q, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(otherAt, "file")); err != nil {
		t.Errorf("the other pod's volume: %v", err)
	}
	kill(t, unix.SIGKILL, clients(t, at)...)
	awaitDead(t, at)
	testtool.Must(t, u.TearDown(t.Context()))
	testtool.Must(t, otherEnd.TearDown(t.Context()))
	n.wantGone(at)
	n.wantGone(otherAt)
}

// awaitDead waits until a mount's client has ended: then it answers at once.
func awaitDead(t *testing.T, at string) {
	t.Helper()
	awaitAnswer(t, at, unix.ENOTCONN)
}

// awaitAnswer waits until a mount answers with an error, or with none.
func awaitAnswer(t *testing.T, at string, want error) {
	t.Helper()
	var st unix.Statfs_t
	for t.Context().Err() == nil {
		if err := unix.Statfs(at, &st); errors.Is(err, want) {
			return
		}
	}
}

// A container that has a file open goes on after an outage of all bricks, whatever the agent
// does meanwhile.
func bricksAway(t *testing.T, s *glusterserver.Server) {
	s.NewVolume(t, "outage")
	n := newNode(t, glusterfs.Config{})
	m, u, at := n.pod("a", "outage", false)
	testtool.Must(t, m.SetUp(t.Context(), volume.MounterArgs{}))
	held, err := os.Create(filepath.Join(at, "file"))
	testtool.Must(t, err)
	defer held.Close()
	_, err = held.WriteString("before")
	testtool.Must(t, err)
	testtool.Must(t, held.Sync())
	before := clients(t, at)
	s.KillBricks(t, "outage")
	awaitAnswer(t, at, unix.ENOTCONN)
	if _, err := m.GetMetrics(t.Context()); !errors.Is(err, unix.ENOTCONN) || !strings.Contains(err.Error(), "does not reach its servers") {
		t.Errorf("metrics without servers: %v", err)
	}
	testtool.Must(t, m.SetUp(t.Context(), volume.MounterArgs{}))
	if after := clients(t, at); len(before) == 0 || !slices.Equal(after, before) {
		t.Errorf("the clients were %v, and are %v", before, after)
	}
	s.Gluster(t, "volume", "start", "outage", "force")
	awaitAnswer(t, at, nil)
	_, err = held.WriteString(" and after")
	testtool.Must(t, err)
	testtool.Must(t, held.Sync())
	if got, err := os.ReadFile(filepath.Join(at, "file")); string(got) != "before and after" || err != nil {
		t.Errorf("after the outage: %q, %v", got, err)
	}
	testtool.Must(t, held.Close())
	testtool.Must(t, u.TearDown(t.Context()))
	n.wantGone(at)
}

// A client that dies alone takes its mount away, which a manager sees in the mount table.
func clientDiesAndUnmounts(t *testing.T) {
	n := newNode(t, glusterfs.Config{})
	m, u, at := n.pod("a", "data", false)
	testtool.Must(t, m.SetUp(t.Context(), volume.MounterArgs{}))
	mounts := table.Of(n.GetMounter())
	changed := mounts.Subscribe(t.Context())
	kill(t, unix.SIGKILL, server(t, at))
	for mounted := true; mounted; {
		var err error
		_, mounted, err = mounts.At(at)
		testtool.Must(t, err)
		if mounted {
			<-changed
		}
	}
	testtool.Must(t, m.SetUp(t.Context(), volume.MounterArgs{}))
	if _, err := m.GetMetrics(t.Context()); err != nil {
		t.Error(err)
	}
	testtool.Must(t, u.TearDown(t.Context()))
	n.wantGone(at)
}

func clientHangs(t *testing.T) {
	n := newNode(t, glusterfs.Config{ForceAfter: 200 * time.Millisecond, LazyAfter: 400 * time.Millisecond})
	m, u, at := n.pod("a", "data", false)
	testtool.Must(t, m.SetUp(t.Context(), volume.MounterArgs{}))
	held, err := os.Create(filepath.Join(at, "file"))
	testtool.Must(t, err)
	defer held.Close()
	kill(t, unix.SIGSTOP, clients(t, at)...)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := m.GetMetrics(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("metrics of a client that hangs: %v", err)
	}
	testtool.Must(t, m.SetUp(t.Context(), volume.MounterArgs{})) // it is mounted
	for err = u.TearDown(t.Context()); err != nil; err = u.TearDown(t.Context()) {
		if !volume.IsUncertain(err) || t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
	n.wantGone(at)
}

// A server that hangs takes connections and says nothing.
func serverHangs(t *testing.T, s *glusterserver.Server) {
	n := newNode(t, glusterfs.Config{})
	kill(t, unix.SIGSTOP, s.PID)
	defer kill(t, unix.SIGCONT, s.PID)
	m, u, at := n.pod("a", "data", false)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := m.SetUp(ctx, volume.MounterArgs{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("set up from a silent server: %v", err)
	}
	n.wantGone(at)
	kill(t, unix.SIGCONT, s.PID)
	testtool.Must(t, m.SetUp(t.Context(), volume.MounterArgs{}))
	testtool.Must(t, u.TearDown(t.Context()))
	n.wantGone(at)
}

func noSuchVolume(t *testing.T) {
	n := newNode(t, glusterfs.Config{})
	m, _, at := n.pod("a", "nosuch", false)
	err := m.SetUp(t.Context(), volume.MounterArgs{})
	e, ok := errors.AsType[*mount.Error](err)
	if !ok || e.Uncertain || volume.IsUncertain(err) || !strings.Contains(err.Error(), "failed to fetch volume file (key:nosuch)") {
		t.Errorf("set up of an unknown volume: %v", err)
	}
	n.wantGone(at)
}
