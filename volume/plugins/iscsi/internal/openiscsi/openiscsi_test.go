package openiscsi_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/volume/plugins/iscsi/internal/openiscsi"
)

func TestLoginAndLogout(t *testing.T) {
	n := newNode(t)
	n.ids["10.0.0.1 3"], n.ids["10.0.0.1 4"] = "naa.6001", "naa.6002"
	for range 2 { // the second time everything is there
		d, _, err := n.initiator.Login(t.Context(), lun(3, "10.0.0.1"), nil)
		want := openiscsi.Device{Path: n.at("dev/sd1x3"), Disks: []string{"sd1x3"}, ID: "naa.6001", Size: 1 << 20}
		if diff := cmp.Diff(want, d); err != nil || diff != "" {
			t.Fatalf("%v, the device (-want +got):\n%s", err, diff)
		}
	}
	if _, _, err := n.initiator.Login(t.Context(), lun(4, "10.0.0.1"), nil); err != nil {
		t.Fatal(err)
	}
	if logins := n.called("--login"); logins != 1 {
		t.Errorf("%d logins, two disks share one session", logins)
	}
	n.must(n.initiator.Logout(t.Context(), lun(3, "10.0.0.1")))
	if n.called("--logout") != 0 {
		t.Error("the session of another disk was closed")
	}
	if _, err := n.initiator.Find(t.Context(), lun(3, "10.0.0.1")); !errors.Is(err, openiscsi.ErrNoDisk) {
		t.Errorf("the disk is still there: %v", err)
	}
	for range 2 {
		n.must(n.initiator.Logout(t.Context(), lun(4, "10.0.0.1")))
	}
	if n.called("-r 1 --logout") != 1 {
		t.Errorf("the session was not closed once: %q", n.calls)
	}
	if left, err := os.ReadDir(n.at("etc/iscsi/nodes/" + iqn)); err != nil || len(left) > 0 {
		t.Errorf("records are left: %v, %v", left, err)
	}
}

func TestOnePortalIsEnough(t *testing.T) {
	n := newNode(t)
	n.codes["10.0.0.1"] = 8
	n.ids["10.0.0.1 0"], n.ids["10.0.0.2 0"] = "naa.6001", "naa.6001"
	both := lun(0, "10.0.0.1", "10.0.0.2")
	if d, _, err := n.initiator.Login(t.Context(), both, nil); err != nil || len(d.Disks) != 1 {
		t.Fatalf("%+v, %v", d, err)
	}
	delete(n.codes, "10.0.0.1") // it is back
	d, _, err := n.initiator.Login(t.Context(), both, nil)
	if err != nil || len(d.Disks) != 2 {
		t.Fatalf("%+v, %v", d, err)
	}
	// And now dm-multipath has both.
	for _, disk := range d.Disks {
		n.must(os.MkdirAll(n.at("sys/block/"+disk+"/holders/dm-0"), 0o755))
	}
	n.write("sys/block/dm-0/dm/uuid", "mpath-36001\n")
	n.write("sys/block/dm-0/dm/name", "mpatha\n")
	n.write("sys/block/dm-0/size", "2048\n")
	n.write("sys/block/dm-0/dev", "253:0")
	n.write("dev/dm-0", "253:0")
	if d, err = n.initiator.Rescan(t.Context(), both); err != nil || d.Path != n.at("dev/dm-0") {
		t.Errorf("%+v, %v", d, err)
	}
	if n.called("device/rescan < 1") != 2 || n.called("multipathd resize map mpatha") != 1 {
		t.Errorf("calls: %q", n.calls)
	}
	n.must(n.initiator.Logout(t.Context(), both))
	if n.called("multipath -f mpatha") != 1 || n.called("--logout") != 2 {
		t.Errorf("calls: %q", n.calls)
	}
}

func TestOwnNameOfTheInitiator(t *testing.T) {
	n := newNode(t)
	n.ids["10.0.0.1 0"] = "naa.6001"
	l := lun(0, "10.0.0.1")
	l.Interface = openiscsi.Interface{Name: "10.0.0.1:3260:pv", Base: "default", InitiatorName: "iqn.2026-01.com.example:node"}
	_, _, err := n.initiator.Login(t.Context(), l, nil)
	n.must(err, n.initiator.Logout(t.Context(), l))
	for _, call := range []string{
		"-m iface -I 10.0.0.1:3260:pv -o new", "-I 10.0.0.1:3260:pv -o update -n iface.transport_name -v tcp",
		"-I 10.0.0.1:3260:pv -o update -n iface.initiatorname -v iqn.2026-01.com.example:node", "-m iface -I 10.0.0.1:3260:pv -o delete",
	} {
		if n.called(call) != 1 {
			t.Errorf("%s was called %d times", call, n.called(call))
		}
	}
	if n.called("iscsi_ifacename -v") > 0 || n.called("<empty>") > 0 {
		t.Errorf("calls: %q", n.calls)
	}
}

func TestWithoutOpenISCSI(t *testing.T) {
	i := openiscsi.New(openiscsi.Config{Sys: t.TempDir(), ToolDirs: []string{t.TempDir()}})
	_, _, err := i.Login(t.Context(), lun(0, "10.0.0.1"), nil)
	if !errors.Is(err, openiscsi.ErrNoInitiator) || !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("Login = %v", err)
	}
	if err := i.Logout(t.Context(), lun(0, "10.0.0.1")); err != nil {
		t.Errorf("Logout = %v", err)
	}
}

// A program's exit code becomes a reason, and the end of the context ends it.
func TestPrograms(t *testing.T) {
	dir := t.TempDir()
	i := openiscsi.New(openiscsi.Config{Sys: t.TempDir(), ToolDirs: []string{dir}, Databases: []string{dir}})
	program := func(script string) {
		if err := os.WriteFile(filepath.Join(dir, "iscsiadm"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program("echo it is refused; exit 24")
	if _, _, err := i.Login(t.Context(), lun(0, "10.0.0.1"), nil); !errors.Is(err, openiscsi.ErrLogin) || !strings.Contains(err.Error(), "it is refused") {
		t.Errorf("Login = %v", err)
	}
	program("kill -9 $$")
	if _, _, err := i.Login(t.Context(), lun(0, "10.0.0.1"), nil); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("a killed program: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	began := filepath.Join(dir, "began")
	record := filepath.Join(dir, "nodes", iqn, "10.0.0.1,3260")
	text := "iface.iscsi_ifacename = default\nnode.conn[0].address = 10.0.0.1\nnode.conn[0].port = 3260\n# END RECORD\n"
	if err := errors.Join(os.MkdirAll(filepath.Dir(record), 0o755), os.WriteFile(record, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	program(`case "$*" in *--login*) : >` + began + `; exec sleep 600;; esac`)
	go func() {
		defer cancel()
		for t.Context().Err() == nil {
			if _, err := os.Stat(began); err == nil {
				return
			}
			runtime.Gosched()
		}
	}()
	if _, _, err := i.Login(ctx, lun(0, "10.0.0.1"), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}

// A removal that hangs is left alone when its context ends. The next login waits for it, and
// has the disk for good.
func TestALoginAfterAnAbandonedRemoval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.ids["10.0.0.1 0"] = "naa.6001"
		_, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1"), nil)
		n.must(err)
		released := make(chan struct{})
		n.initiator.ReplaceOpen(func(string) (int, error) {
			<-released
			return -1, unix.EIO
		})
		short := func(do func(ctx context.Context) error) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return do(ctx)
		}
		login := func(ctx context.Context) error {
			_, _, err := n.initiator.Login(ctx, lun(0, "10.0.0.1"), nil)
			return err
		}
		err = short(func(ctx context.Context) error { return n.initiator.Logout(ctx, lun(0, "10.0.0.1")) })
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Logout = %v", err)
		}
		if err := short(login); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Login while the disk is removed = %v", err)
		}
		close(released)
		n.must(login(t.Context()))
		synctest.Wait()
		if n.called("delete < 1") > 0 {
			t.Error("the disk was removed after its next login")
		}
	})
}

// Login says what it has added, so that no more is undone: neither the disk of an earlier
// login, nor the session of another disk.
func TestLoginSaysWhatItAdded(t *testing.T) {
	n := newNode(t)
	n.ids["10.0.0.1 0"], n.ids["10.0.0.1 1"], n.ids["10.0.0.2 0"] = "naa.6001", "naa.6002", "naa.6003"
	login := func(l openiscsi.LUN, want ...string) openiscsi.LUN {
		t.Helper()
		_, added, _ := n.initiator.Login(t.Context(), l, nil)
		if wanted := lun(l.Number, want...); !slices.Equal(added.Portals, wanted.Portals) || added.Number != l.Number || added.IQN != l.IQN {
			t.Errorf("added %+v, want %+v", added, wanted)
		}
		return added
	}
	login(lun(0, "10.0.0.1"), "10.0.0.1")
	login(lun(0, "10.0.0.1"))
	added := login(lun(1, "10.0.0.1"), "10.0.0.1") // by the same session
	n.must(n.initiator.Logout(t.Context(), added))
	added = login(lun(0, "10.0.0.1", "10.0.0.2"), "10.0.0.2") // which is another disk there
	n.must(n.initiator.Logout(t.Context(), added))
	if n.called("--logout") != 1 || n.called("-r 2 --logout") != 1 {
		t.Errorf("calls: %q", n.calls)
	}
	if _, err := n.initiator.Find(t.Context(), lun(0, "10.0.0.1")); err != nil {
		t.Errorf("the first disk: %v", err)
	}
}

// A daemon that may be about to take the paths is waited for; whether there is one is known.
func TestMultipathdThatCannotBeAskedAfter(t *testing.T) {
	n := newNode(t)
	n.ids["10.0.0.1 0"], n.ids["10.0.0.2 0"] = "naa.6001", "naa.6001"
	n.must(os.Remove(n.at("proc/net/unix")), os.Symlink("unix", n.at("proc/net/unix")))
	if d, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1", "10.0.0.2"), nil); !errors.Is(err, unix.ELOOP) || errors.Is(err, openiscsi.ErrNoDisk) {
		t.Errorf("Login = %+v, %v", d, err)
	}
	if d, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1"), nil); err != nil || len(d.Disks) != 1 {
		t.Errorf("with one path: %+v, %v", d, err)
	}
}

// A portal's name that cannot be resolved now may be that of a session.
func TestNamesOfPortals(t *testing.T) {
	n := newNode(t)
	n.ids["10.0.0.1 0"], n.ids["storage.example 0"] = "naa.6001", "naa.6001"
	failure := &net.DNSError{Err: "server misbehaving", Name: "storage.example", IsTemporary: true}
	var addresses []string
	n.initiator.ReplaceLookup(func(context.Context, string) ([]string, error) {
		if addresses == nil {
			return nil, failure
		}
		return addresses, nil
	})
	_, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1"), nil)
	n.must(err)
	named := lun(0, "storage.example")
	for _, call := range []func() error{
		func() error { _, err := n.initiator.Find(t.Context(), named); return err },
		func() error { return n.initiator.Logout(t.Context(), named) },
		func() error { _, _, err := n.initiator.Login(t.Context(), named, nil); return err },
	} {
		if err := call(); !errors.Is(err, failure) {
			t.Errorf("err = %v", err)
		}
	}
	addresses = []string{"10.0.0.1"}
	if _, err := n.initiator.Find(t.Context(), named); err != nil {
		t.Errorf("by its address: %v", err)
	}
	addresses, failure.IsTemporary, failure.IsNotFound = nil, false, true
	if _, err := n.initiator.Find(t.Context(), named); !errors.Is(err, openiscsi.ErrNoDisk) {
		t.Errorf("a name that nothing has: %v", err)
	}
	if _, _, err := n.initiator.Login(t.Context(), named, nil); err != nil { // the sessions' own names need no resolver
		t.Error(err)
	}
}
