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
	"github.com/podvol/podvol/util/nfsserver"
	"github.com/podvol/podvol/util/vmtest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

const (
	// troublePatience is what a set-up gets, and boundSlack how much longer it
	// may take to say what happened and to clean up, on an emulated processor.
	troublePatience = 8 * time.Second
	boundSlack      = 5 * time.Second
)

// troubled is a plugin on this machine's kernel.
type troubled struct {
	t      *testing.T
	plugin volume.VolumePlugin
	host   *volume.Host
	uids   int
}

func newTroubled(t *testing.T, c mount.Config) *troubled {
	t.Helper()
	p := nfs.New(nfs.Config{ForceAfter: time.Second, LazyAfter: 4 * time.Second})
	h := &volume.Host{RootDir: filepath.Join(t.TempDir(), "root"), Mounter: mount.New(c)}
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
func (n *troubled) setUp(m volume.Mounter) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(n.t.Context(), troublePatience)
	defer cancel()
	start := time.Now()
	err := m.SetUp(ctx, volume.MounterArgs{})
	return time.Since(start), err
}

func (n *troubled) tearDown(uid types.UID) (time.Duration, error) {
	start := time.Now()
	u := unmounter(n.t, n.plugin, "nfs211", uid)
	err := u.TearDown(n.t.Context())
	if _, detached := errors.AsType[*volume.DetachedError](err); detached {
		err = errors.Join(err, u.TearDown(n.t.Context()))
	}
	return time.Since(start), err
}

func (n *troubled) isMounted(m volume.Mounter) bool {
	n.t.Helper()
	table, err := mount.TableOf(n.host.Mounter)
	if err != nil {
		n.t.Fatal(err)
	}
	_, ok, err := table.At(m.GetPath())
	if err != nil {
		n.t.Fatal(err)
	}
	return ok
}

// refused is a share that cannot be mounted: in time, for this cause, with
// advice, and nothing is left.
func (n *troubled) refused(how, name string, cause mount.Cause, source string, options ...string) {
	n.t.Helper()
	m, _ := n.mounter(source, options...)
	took, err := n.setUp(m)
	n.t.Logf("| %-7s | %-22s | %-50s | %5.2f s |", how, name, causeIn(err), took.Seconds())
	e, ok := errors.AsType[*mount.Error](err)
	if !ok || !errors.Is(err, cause) || e.Advice() == "" || !strings.Contains(err.Error(), e.Advice()) {
		n.t.Errorf("%s: %v, want %v with advice", name, err, cause)
	}
	if took > troublePatience+boundSlack {
		n.t.Errorf("%s took %v", name, took)
	}
	if _, err := os.Lstat(m.GetPath()); err == nil || n.isMounted(m) {
		n.t.Errorf("%s: something is left (%v)", name, err)
	}
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
		s := nfsserver.Start(t, packages, nfsserver.Config{Name: "s1", Exports: []nfsserver.Export{{Path: "/data"}, {Path: "/other"}, {Path: "/denied", Denied: true}}})
		s.Put("/data/hello", "hello")
		nfsserver.Hosts(t, map[string]string{"files.test": s.Address()})
		t.Run("before the mount, native", func(t *testing.T) {
			testTroubleBefore(t, s, "native", newTroubled(t, mount.Config{MountCommand: "no-such-command", HelperDirs: []string{"/nonexistent"}}), mount.ErrConnectionRefused)
		})
		t.Run("before the mount, helper", func(t *testing.T) {
			dir := nfsserver.Helper(t, packages)
			// mount.nfs goes on asking for two minutes, and says why only then.
			testTroubleBefore(t, s, "helper", newTroubled(t, mount.Config{Via: mount.ViaCommand, HelperDirs: []string{dir}}), mount.ErrTimedOut)
		})
		t.Run("while mounted", func(t *testing.T) { testTroubleWhileMounted(t, s) })
	})
}

func testTroubleBefore(t *testing.T, s *nfsserver.Server, how string, n *troubled, stopped mount.Cause) {
	data := s.Address() + ":/data"
	n.refused(how, "access denied", mount.ErrAccessDenied, s.Address()+":/denied", "vers=3", "nolock")
	n.refused(how, "wrong path", mount.ErrNoSuchExport, data+"/nothing", "vers=4.2")
	n.refused(how, "name does not resolve", mount.ErrNameResolution, "nowhere.test:/data", "vers=4.2")
	s.Speak("3")
	n.refused(how, "wrong version", mount.ErrVersionUnsupported, data, "vers=4.2")
	s.Speak(nfsserver.AllVersions()...)
	s.Stop()
	n.refused(how, "stopped", stopped, data, "vers=4.2")
	s.Start()
	s.Drop()
	n.refused(how, "silent", mount.ErrTimedOut, data, "vers=4.2")
	s.Pass()
	s.Delay(50 * time.Millisecond)
	m, uid := n.mounter(data)
	took, err := n.setUp(m)
	t.Logf("| %-7s | %-22s | %-50v | %5.2f s |", how, "slow", err, took.Seconds())
	s.Delay(0)
	if err != nil {
		t.Errorf("a slow server: %v", err)
	}
	if took, err := n.tearDown(uid); err != nil || took > boundSlack {
		t.Errorf("tear-down: %v after %v", err, took)
	}
}

func testTroubleWhileMounted(t *testing.T, s *nfsserver.Server) {
	n := newTroubled(t, mount.Config{})
	row := func(name string, what any, took time.Duration) {
		t.Logf("| mounted | %-22s | %-50v | %5.2f s |", name, what, took.Seconds())
	}
	measure := func(m volume.Mounter, name string, cause mount.Cause) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		_, err := m.GetMetrics(ctx)
		took := time.Since(start)
		row(name, causeIn(err), took)
		if e, ok := errors.AsType[*mount.Error](err); !ok || e.Cause != cause || e.Advice() == "" || took > time.Second+boundSlack {
			t.Errorf("%s: GetMetrics = %v after %v, want %v", name, err, took, cause)
		}
	}
	mounted := func() (volume.Mounter, types.UID) {
		t.Helper()
		m, uid := n.mounter(s.Address() + ":/data")
		if _, err := n.setUp(m); err != nil {
			t.Fatal(err)
		}
		return m, uid
	}
	gone := func(name string, uid types.UID) {
		t.Helper()
		took, err := n.tearDown(uid)
		row(name, fmt.Sprintf("torn down: %v", err), took)
		if err != nil || took > 4*time.Second+boundSlack {
			t.Errorf("%s: tear-down = %v after %v", name, err, took)
		}
	}
	t.Run("silent", func(t *testing.T) {
		m, uid := mounted()
		s.Drop()
		defer s.Pass()
		for range 3 { // which share one thread
			measure(m, "silent, metrics", mount.ErrTimedOut)
		}
		gone("silent", uid)
	})
	t.Run("made anew", func(t *testing.T) {
		m, uid := mounted()
		s.Replace()
		measure(m, "stale, metrics", mount.ErrStaleHandle)
		if took, err := n.setUp(m); err != nil || took > boundSlack {
			t.Errorf("set-up of the same pod = %v after %v", err, took)
		}
		measure(m, "stale, set up again", mount.ErrStaleHandle)
		fresh, freshUID := mounted()
		if data, err := os.ReadFile(filepath.Join(fresh.GetPath(), "hello")); err != nil || string(data) != "hello" {
			t.Errorf("a new pod reads %q, %v", data, err)
		}
		gone("stale", uid)
		gone("the new pod's", freshUID)
	})
	t.Run("export removed", func(t *testing.T) {
		m, uid := mounted()
		s.Unexport("/data")
		measure(m, "export removed, metrics", mount.ErrStaleHandle)
		n.refused("mounted", "export removed, new pod", mount.ErrNoSuchExport, s.Address()+":/data", "vers=4.2")
		gone("export removed", uid)
	})
}
