package openiscsi_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/iscsi/internal/openiscsi"
)

func TestPasswordsAreInTheRecordAlone(t *testing.T) {
	n := newNode(t)
	n.ids["10.0.0.1 0"] = "naa.6001"
	chap := &openiscsi.CHAP{Username: "node", Password: "first secret", UsernameIn: "target", PasswordIn: "second secret"}
	if _, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1"), chap); err != nil {
		t.Fatal(err)
	}
	want := `# BEGIN RECORD 2.1.8
node.name = ` + iqn + `
iface.iscsi_ifacename = default
node.conn[0].address = 10.0.0.1
node.conn[0].port = 3260
node.startup = manual
node.session.scan = manual
node.session.initial_login_retry_max = 2
node.session.auth.authmethod = CHAP
node.session.auth.username = node
node.session.auth.password = first secret
node.session.auth.username_in = target
node.session.auth.password_in = second secret
# END RECORD
`
	if diff := cmp.Diff([]string{want}, n.records); diff != "" || n.modes[0] != 0o600 {
		t.Errorf("mode %v, record (-want +got):\n%s", n.modes[0], diff)
	}
	if n.called("secret") > 0 {
		t.Errorf("a password is in a call: %q", n.calls)
	}
}

// Another program of the machine writes a record, of whichever target.
func TestARecordThatAnotherProgramWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.ids["10.0.0.1 0"] = "naa.6001"
		n.write("etc/iscsi/.podvol-1", "half")
		database, err := os.Open(n.at("etc/iscsi"))
		n.must(err, eintr.Do(func() error { return unix.Flock(int(database.Fd()), unix.LOCK_EX) }))
		ended := make(chan error, 1)
		go func() {
			_, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1"), nil)
			ended <- err
		}()
		synctest.Wait()
		_, err = os.Stat(n.at("etc/iscsi/.podvol-1"))
		n.must(err, database.Close(), <-ended)
		if _, err := os.Stat(n.at("etc/iscsi/.podvol-1")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("what a program that was killed has left: %v", err)
		}
	})
}

func TestRefusedLoginLeavesNoPassword(t *testing.T) {
	for code, want := range map[int]error{24: openiscsi.ErrLogin, 5: openiscsi.ErrLogin, 8: openiscsi.ErrUnreachable, 20: openiscsi.ErrNoInitiator} {
		n := newNode(t)
		n.codes["10.0.0.1"] = code
		_, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1"), &openiscsi.CHAP{Username: "node", Password: "first secret"})
		if _, ok := errors.AsType[*volume.Failure](err); !ok || !errors.Is(err, want) || strings.Contains(err.Error(), "first secret") {
			t.Errorf("code %d: %v", code, err)
		}
		err = filepath.WalkDir(n.at("etc"), func(path string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				t.Errorf("code %d: %s is left", code, path)
			}
			return err
		})
		n.must(err)
	}
}

// A killed iscsiadm would leave the lock of its database.
func TestTheDatabaseIsNeverLeftLocked(t *testing.T) {
	n := newNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls := 0
	i := openiscsi.New(openiscsi.Config{Sys: n.at("sys"), Databases: []string{n.at("etc/iscsi")}, Run: func(running context.Context, program string, args ...string) (string, int, error) {
		if _, bounded := running.Deadline(); slices.Contains(args, "new") {
			cancel()
			if calls++; running.Err() != nil || !bounded {
				t.Errorf("%q ends with its caller: %v, or never: %v", args, running.Err(), !bounded)
			}
		} else if slices.Contains(args, "--login") && running.Err() == nil {
			t.Error("the login does not end with its caller")
		}
		return n.run(running, program, args...)
	}})
	if _, _, err := i.Login(ctx, lun(0, "10.0.0.1"), nil); !errors.Is(err, context.Canceled) || calls != 1 {
		t.Errorf("after %d calls: %v", calls, err)
	}
}

// A crash may leave a password in a file that is no record yet.
func TestLeftFilesAreRemoved(t *testing.T) {
	n := newNode(t)
	n.ids["10.0.0.1 0"], n.ids["10.0.0.2 0"] = "naa.6001", "naa.6001"
	half := func() { n.write("etc/iscsi/.podvol-123", "node.session.auth.password = first secret\n") }
	has := func(want ...string) {
		t.Helper()
		var names []string
		all, err := os.ReadDir(n.at("etc/iscsi"))
		for _, e := range all {
			names = append(names, e.Name())
		}
		if diff := cmp.Diff(want, names); err != nil || diff != "" {
			t.Errorf("%v, files (-want +got):\n%s", err, diff)
		}
	}
	half()
	n.write("etc/iscsi/iscsid.conf", "")
	_, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1", "10.0.0.2"), nil)
	n.must(err)
	has("iscsid.conf", "nodes")
	half()
	n.must(n.initiator.Logout(t.Context(), lun(0, "10.0.0.1", "10.0.0.2")))
	has("iscsid.conf", "nodes")
}
