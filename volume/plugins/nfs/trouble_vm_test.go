package nfs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/nfsserver"
	"github.com/podvol/podvol/util/testenv/vmtest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/lazyunmount"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

const (
	// troublePatience is what a set-up gets, and boundSlack how much longer it
	// may take to say what happened and to clean up, on an emulated processor.
	troublePatience = 8 * time.Second
	boundSlack      = 20 * time.Second
	// mountLimit is for a set-up that is to succeed, however busy the machine is.
	mountLimit = time.Minute
	// slowness delays every answer of a slow server.
	slowness = 100 * time.Millisecond
	// restartLimit is when a pod must have its data back after a restart: Linux
	// connects again at the latest a minute after a connection was lost.
	restartLimit = time.Minute + boundSlack
)

// troubled is a plugin on this machine's kernel.
type troubled struct {
	t      *testing.T
	plugin volume.VolumePlugin
	host   *volume.Host
	uids   int
}

func newTroubled(t *testing.T, c host.Config) *troubled {
	t.Helper()
	p := nfs.New(nfs.Config{
		ForceAfter: time.Second, LazyAfter: 4 * time.Second,
		Breaker: nfs.BreakerConfig{Failures: -1}, // each trouble is to be met
	})
	h := &volume.Host{RootDir: filepath.Join(nfsserver.DetachBelow(t, t.TempDir()), "root"), Mounter: host.New(c)}
	if err := p.Init(h); err != nil {
		t.Fatal(err)
	}
	return &troubled{t: t, plugin: p, host: h}
}

// mounter is that of a new pod.
func (n *troubled) mounter(source string, options ...string) (volume.Mounter, types.UID) {
	n.t.Helper()
	n.uids++
	uid := types.UID(fmt.Sprintf("u%d", n.uids))
	server, path, _ := strings.Cut(source, ":")
	return mounter(n.t, n.plugin, persistent(server, path, func(pv *v1.PersistentVolume) { pv.Spec.MountOptions = options }), uid), uid
}

// setUp is one bounded try.
func (n *troubled) setUp(m volume.Mounter, limit time.Duration) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(n.t.Context(), limit)
	defer cancel()
	start := time.Now()
	err := m.SetUp(ctx, volume.MounterArgs{})
	return time.Since(start), err
}

func (n *troubled) tearDown(uid types.UID) (time.Duration, error) {
	start := time.Now()
	u := unmounter(n.t, n.plugin, "nfs211", uid)
	err := u.TearDown(n.t.Context())
	if _, detached := errors.AsType[*lazyunmount.Error](err); detached {
		err = errors.Join(err, u.TearDown(n.t.Context()))
	}
	return time.Since(start), err
}

// mounted is the kernel's entry of a pod's volume.
func (n *troubled) mounted(m volume.Mounter) (mount.Entry, bool) {
	n.t.Helper()
	mounts := table.Of(n.host.Mounter)
	entry, ok, err := mounts.At(m.GetPath())
	if err != nil {
		n.t.Fatal(err)
	}
	return entry, ok
}

// versionOf is the version in a volume's options, or in those of a mount; "any" if
// none is asked for.
func versionOf(options []string) string {
	for _, o := range options {
		if version, ok := strings.CutPrefix(o, "vers="); ok {
			return version
		}
	}
	return "any"
}

// refused is a share that cannot be mounted: in time, for this cause, with
// advice, and nothing is left.
func (n *troubled) refused(row, name string, cause mount.Cause, source string, options ...string) {
	n.t.Helper()
	m, _ := n.mounter(source, options...)
	took, err := n.setUp(m, troublePatience)
	n.row(row, name, versionOf(options), causeIn(err), took)
	e, ok := errors.AsType[*mount.Error](err)
	if !ok || !errors.Is(err, cause) || e.Advice() == "" || !strings.Contains(err.Error(), e.Advice()) {
		n.t.Errorf("%s, version %s: %v, want %v with advice", name, versionOf(options), err, cause)
	}
	if took > troublePatience+boundSlack {
		n.t.Errorf("%s took %v", name, took)
	}
	_, err = os.Lstat(m.GetPath())
	if _, mounted := n.mounted(m); mounted || err == nil {
		n.t.Errorf("%s: something is left (%v)", name, err)
	}
}

// row is one line of the table that the test prints.
func (n *troubled) row(row, name, version, what string, took time.Duration) {
	n.t.Helper()
	n.t.Logf("| %-16s | %-24s | %-3s | %-52s | %5.2f s |", row, name, version, what, took.Seconds())
}

func outcome(done string, err error) string {
	if err != nil {
		return err.Error()
	}
	return done
}

func causeIn(err error) string {
	if e, ok := errors.AsType[*mount.Error](err); ok {
		return e.Cause.Error()
	}
	return fmt.Sprint(err)
}

// TestServerTrouble has every trouble that a server can give, before the mount
// and while it is mounted.
func TestServerTrouble(t *testing.T) {
	packages := nfsserver.Unpack(t)
	vmtest.Run(t, func(t *testing.T) {
		for _, kind := range []nfsserver.Kind{nfsserver.Kernel, nfsserver.Ganesha} {
			t.Run(kind.String(), func(t *testing.T) { testTrouble(t, packages, kind) })
		}
	})
}

func testTrouble(t *testing.T, packages nfsserver.Packages, kind nfsserver.Kind) {
	s := nfsserver.Start(t, packages, nfsserver.Config{
		Kind: kind, Name: kind.String(), Exports: []nfsserver.Export{{Path: "/data"}, {Path: "/other"}, {Path: "/denied", Denied: true}},
	})
	s.Put("/data/hello", "hello")
	nfsserver.Hosts(t, map[string]string{"files.test": s.Address()})
	t.Run("before the mount, native", func(t *testing.T) {
		testTroubleBefore(t, s, kind.String()+", native", newTroubled(t, host.Config{MountCommand: "no-such-command", HelperDirs: []string{"/nonexistent"}}), mount.ErrConnectionRefused)
	})
	if kind == nfsserver.Kernel { // what mount.nfs makes of a server's words is no server's matter
		t.Run("before the mount, helper", func(t *testing.T) {
			dir := nfsserver.Helper(t, packages)
			// mount.nfs goes on asking for two minutes, and says why only then.
			testTroubleBefore(t, s, kind.String()+", helper", newTroubled(t, host.Config{Via: host.ViaCommand, HelperDirs: []string{dir}}), mount.ErrTimedOut)
		})
	}
	t.Run("while mounted", func(t *testing.T) { testTroubleWhileMounted(t, s, kind.String()+", mounted") })
}

func testTroubleBefore(t *testing.T, s *nfsserver.Server, row string, n *troubled, stopped mount.Cause) {
	data := s.Address() + ":/data"
	n.refused(row, "access denied", mount.ErrAccessDenied, s.Address()+":/denied", "vers=3", "nolock")
	// Servers hide from NFSv4 what is not exported to a client.
	n.refused(row, "access denied", mount.ErrNoSuchExport, s.Address()+":/denied", "vers=4.2")
	n.refused(row, "wrong path", mount.ErrNoSuchExport, data+"/nothing", "vers=4.2")
	n.refused(row, "name does not resolve", mount.ErrNameResolution, "nowhere.test:/data", "vers=4.2")
	s.Speak("3")
	n.refused(row, "wrong version", mount.ErrVersionUnsupported, data, "vers=4.2")
	s.Speak(nfsserver.AllVersions()...)
	s.Stop()
	n.refused(row, "stopped", stopped, data, "vers=4.2")
	s.Start()
	s.Drop()
	n.refused(row, "silent", mount.ErrTimedOut, data, "vers=4.2")
	s.Pass()
	s.Delay(troublePatience / 2) // one answer comes in time, not all of them
	n.refused(row, "too slow", mount.ErrTimedOut, data, "vers=4.2")
	s.Delay(slowness)
	m, uid := n.mounter(data)
	took, err := n.setUp(m, mountLimit)
	entry, _ := n.mounted(m)
	n.row(row, "slow", versionOf(entry.SuperOptions), outcome("mounted", err), took)
	if err != nil || took < 3*slowness {
		t.Errorf("a slow server: %v after %v", err, took)
	}
	s.Delay(0)
	if took, err := n.tearDown(uid); err != nil || took > boundSlack {
		t.Errorf("tear-down: %v after %v", err, took)
	}
}

// onMounted is one pod after the other on a server that has trouble meanwhile.
type onMounted struct {
	*troubled
	server  *nfsserver.Server
	row     string
	version string // of the latest mount
}

func (n *onMounted) mount() (volume.Mounter, types.UID) {
	n.t.Helper()
	m, uid := n.mounter(n.server.Address() + ":/data")
	if _, err := n.setUp(m, mountLimit); err != nil {
		n.t.Fatal(err)
	}
	entry, _ := n.mounted(m)
	n.version = versionOf(entry.SuperOptions)
	return m, uid
}

// measure wants metrics within their second, or what keeps them from coming.
func (n *onMounted) measure(m volume.Mounter, name string, cause mount.Cause) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Second)
	defer cancel()
	start := time.Now()
	_, err := m.GetMetrics(ctx)
	took := time.Since(start)
	n.troubled.row(n.row, name, n.version, causeIn(err), took)
	if e, ok := errors.AsType[*mount.Error](err); !ok || e.Cause != cause || e.Advice() == "" || took > time.Second+boundSlack {
		n.t.Errorf("%s: GetMetrics = %v after %v, want %v", name, err, took, cause)
	}
}

// reads wants the pod to get the server's data, in time.
func (n *onMounted) reads(m volume.Mounter, name string) {
	n.t.Helper()
	start := time.Now()
	data, err := os.ReadFile(filepath.Join(m.GetPath(), "hello"))
	took := time.Since(start)
	n.troubled.row(n.row, name, n.version, fmt.Sprintf("reads %q", data), took)
	if err != nil || string(data) != "hello" || took > restartLimit {
		n.t.Errorf("%s: it reads %q, %v after %v", name, data, err, took)
	}
}

func (n *onMounted) gone(name string, uid types.UID) {
	n.t.Helper()
	took, err := n.tearDown(uid)
	n.troubled.row(n.row, name, n.version, outcome("torn down", err), took)
	if err != nil || took > 4*time.Second+boundSlack {
		n.t.Errorf("%s: tear-down = %v after %v", name, err, took)
	}
}

func testTroubleWhileMounted(t *testing.T, s *nfsserver.Server, row string) {
	n := &onMounted{troubled: newTroubled(t, host.Config{}), server: s, row: row}
	t.Run("silent", func(t *testing.T) {
		m, uid := n.mount()
		s.Drop()
		defer s.Pass()
		for range 3 { // which share one thread
			n.measure(m, "silent, metrics", mount.ErrTimedOut)
		}
		n.gone("silent", uid)
	})
	t.Run("stopped", func(t *testing.T) {
		m, uid := n.mount()
		s.Stop()
		defer s.Start()
		n.measure(m, "stopped, metrics", mount.ErrTimedOut)
		n.gone("stopped", uid)
	})
	t.Run("restarted", func(t *testing.T) {
		m, uid := n.mount()
		s.Restart()
		n.reads(m, "restarted")
		n.gone("restarted", uid)
	})
	t.Run("slow", func(t *testing.T) {
		m, uid := n.mount()
		s.Delay(slowness)
		defer s.Delay(0)
		n.reads(m, "slow")
		n.gone("slow", uid)
	})
	t.Run("made anew", func(t *testing.T) {
		m, uid := n.mount()
		s.Replace()
		n.measure(m, "stale, metrics", mount.ErrStaleHandle)
		if took, err := n.setUp(m, mountLimit); err != nil || took > boundSlack {
			t.Errorf("set-up of the same pod = %v after %v", err, took)
		}
		n.measure(m, "stale, set up again", mount.ErrStaleHandle)
		fresh, freshUID := n.mount()
		n.reads(fresh, "stale, a new pod")
		n.gone("stale", uid)
		n.gone("the new pod's", freshUID)
	})
	t.Run("export removed", func(t *testing.T) {
		m, uid := n.mount()
		s.Unexport("/data")
		n.measure(m, "export removed, metrics", mount.ErrStaleHandle)
		n.refused(n.row, "export removed, new pod", mount.ErrNoSuchExport, s.Address()+":/data", "vers=4.2")
		n.gone("export removed", uid)
	})
}
