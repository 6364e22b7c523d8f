package openiscsi_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/iscsi/internal/openiscsi"
)

const iqn = "iqn.2026-01.com.example:disks"

func lun(number int, portals ...string) openiscsi.LUN {
	l := openiscsi.LUN{IQN: iqn, Number: number, Interface: openiscsi.Interface{Name: "default"}}
	for _, host := range portals {
		l.Portals = append(l.Portals, openiscsi.Portal{Host: host, Port: 3260})
	}
	return l
}

// node is a node's sysfs with sessions, an iscsiadm that opens them, and the target's disks.
type node struct {
	t         *testing.T
	dir       string
	initiator *openiscsi.Initiator

	mu       sync.Mutex
	calls    []string
	codes    map[string]int    // exit codes of logins, by portal
	ids      map[string]string // of disks, by "portal lun"; what is missing there is no disk
	sessions int
	users    map[string]string // of disks
	records  []string          // the records with which sessions were opened
	modes    []fs.FileMode
}

func newNode(t *testing.T) *node {
	n := &node{t: t, dir: t.TempDir(), codes: map[string]int{}, ids: map[string]string{}, users: map[string]string{}}
	for _, dir := range []string{"sys/class/iscsi_session", "sys/class/iscsi_connection", "sys/class/scsi_host", "sys/block", "dev", "proc/net", "etc/iscsi"} {
		n.must(os.MkdirAll(n.at(dir), 0o755))
	}
	n.write("proc/net/unix", "Num RefCount Protocol Flags Type St Inode Path\n")
	n.initiator = openiscsi.New(openiscsi.Config{UsedBy: n.usedBy, Sys: n.at("sys"), Dev: n.at("dev"), Proc: n.at("proc"), Databases: []string{n.at("var"), n.at("etc/iscsi")}, Run: n.run})
	n.initiator.Replace(func(path string) (string, error) {
		b, err := os.ReadFile(path)
		return string(b), err
	}, n.put)
	return n
}

func (n *node) at(path string) string { return filepath.Join(n.dir, path) }

func (n *node) must(errs ...error) {
	n.t.Helper()
	if err := errors.Join(errs...); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) write(path, text string) {
	n.t.Helper()
	n.must(os.MkdirAll(filepath.Dir(n.at(path)), 0o755), os.WriteFile(n.at(path), []byte(text), 0o600))
}

func (n *node) usedBy(device string) (string, error) { return n.users[filepath.Base(device)], nil }

func (n *node) run(ctx context.Context, program string, args ...string) (string, int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, program+" "+strings.Join(args, " "))
	value := func(flag string) string {
		if i := slices.Index(args, flag); i >= 0 && i+1 < len(args) {
			return args[i+1]
		}
		return ""
	}
	host, _, _ := strings.Cut(value("-p"), ":")
	record := filepath.Join("etc/iscsi/nodes", value("-T"), host+",3260")
	switch {
	case ctx.Err() != nil:
		return "", 0, ctx.Err()
	case program != "iscsiadm":
		return "", 0, nil
	case value("-m") == "iface" && value("-o") == "show":
		return "# BEGIN RECORD 2.1\niface.iscsi_ifacename = default\niface.transport_name = tcp\niface.net_ifacename = <empty>\n# END RECORD\n", 0, nil
	case value("-m") == "iface":
		return "", 0, nil
	case value("-o") == "new":
		n.write(record, fmt.Sprintf("# BEGIN RECORD 2.1.8\nnode.name = %s\nnode.startup = automatic\niface.iscsi_ifacename = %s\nnode.session.auth.authmethod = None\nnode.conn[0].address = %s\nnode.conn[0].port = 3260\n# END RECORD\n", value("-T"), value("-I"), host))
	case value("-o") == "delete":
		if os.Remove(n.at(record)) != nil {
			return "iscsiadm: No records found", 21, nil
		}
	case slices.Contains(args, "--login"):
		if code := n.codes[host]; code != 0 {
			return "iscsiadm: it failed\n", code, nil
		}
		b, err := os.ReadFile(n.at(record))
		info, serr := os.Stat(n.at(record))
		n.must(err, serr)
		n.records, n.modes = append(n.records, string(b)), append(n.modes, info.Mode())
		n.open(host, value("-I"))
	case slices.Contains(args, "--logout"):
		n.must(os.RemoveAll(n.at("sys/class/iscsi_session/session" + value("-r"))))
	}
	return "", 0, nil
}

// open adds a session to sysfs.
func (n *node) open(host, face string) {
	n.sessions++
	id := fmt.Sprint(n.sessions)
	device := "sys/devices/platform/host" + id + "/session" + id
	class := "sys/class/iscsi_session/session" + id
	n.write(class+"/targetname", iqn+"\n")
	n.write(class+"/ifacename", face+"\n")
	n.write(class+"/target_id", "0\n")
	n.must(os.MkdirAll(n.at(device), 0o755), os.Symlink(n.at(device), n.at(class+"/device")))
	connection := "sys/class/iscsi_connection/connection" + id + ":0"
	n.write(connection+"/persistent_address", host+"\n")
	n.write(connection+"/persistent_port", "3260\n")
	n.write("sys/class/scsi_host/host"+id+"/scan", "")
}

// put is the kernel: it finds disks and forgets them.
func (n *node) put(path, value string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, strings.TrimPrefix(path, n.dir+"/")+" < "+value)
	switch filepath.Base(path) {
	case "scan":
		host := strings.TrimPrefix(filepath.Base(filepath.Dir(path)), "host")
		b, err := os.ReadFile(n.at("sys/class/iscsi_connection/connection" + host + ":0/persistent_address"))
		n.must(err)
		number := value[strings.LastIndex(value, " ")+1:]
		id, there := n.ids[strings.TrimSpace(string(b))+" "+number]
		if !there {
			return nil
		}
		disk := "sd" + host + "x" + number
		unit := "sys/devices/platform/host" + host + "/session" + host + "/target" + host + ":0:0/" + host + ":0:0:" + number
		block := unit + "/block/" + disk
		n.write(unit+"/wwid", id+"\n")
		n.write(block+"/size", "2048\n")
		n.write(block+"/dev", "8:"+host)
		n.must(os.MkdirAll(n.at(block+"/holders"), 0o755), os.Symlink("../..", n.at(block+"/device")), os.Symlink(n.at(block), n.at("sys/block/"+disk)))
		n.write("dev/"+disk, "8:"+host)
	case "delete":
		disk := filepath.Base(filepath.Dir(filepath.Dir(path)))
		unit, err := filepath.EvalSymlinks(n.at("sys/block/" + disk + "/device"))
		n.must(err, os.RemoveAll(unit), os.Remove(n.at("sys/block/"+disk)), os.Remove(n.at("dev/"+disk)))
	}
	return nil
}

func (n *node) called(part string) (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.calls {
		if strings.Contains(c, part) {
			count++
		}
	}
	return count
}

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

func TestTwoDisksBehindOneNumberAreRefused(t *testing.T) {
	n := newNode(t)
	n.ids["10.0.0.1 0"], n.ids["10.0.0.2 0"] = "naa.6001", "naa.6002"
	if _, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1", "10.0.0.2"), nil); !errors.Is(err, openiscsi.ErrNotOneDisk) {
		t.Errorf("Login = %v", err)
	}
}

func TestADiskThatNeverAppears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		begin := time.Now()
		_, _, err := n.initiator.Login(t.Context(), lun(9, "10.0.0.1"), nil)
		if took := time.Since(begin); !errors.Is(err, openiscsi.ErrNoDisk) || took < 30*time.Second || took > 31*time.Second {
			t.Errorf("after %v: %v", took, err)
		}
		n.must(n.initiator.Logout(t.Context(), lun(9, "10.0.0.1")))
		if n.called("--logout") != 1 {
			t.Error("the session is left")
		}
	})
}

func TestADiskInUseStays(t *testing.T) {
	n := newNode(t)
	n.ids["10.0.0.1 0"] = "naa.6001"
	d, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1"), nil)
	n.must(err)
	n.initiator.Replace(func(string) (string, error) { return "8:1", nil }, func(path, value string) error {
		if strings.HasSuffix(path, "/delete") {
			return unix.EBUSY
		}
		return n.put(path, value)
	})
	if err := n.initiator.Logout(t.Context(), lun(0, "10.0.0.1")); !errors.Is(err, unix.EBUSY) {
		t.Errorf("Logout = %v", err)
	}
	if found, err := n.initiator.Find(t.Context(), lun(0, "10.0.0.1")); err != nil || found.Path != d.Path || n.called("--logout") > 0 {
		t.Errorf("the disk is %+v, %v", found, err)
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

// Only a disk that is certainly dead is removed unopened.
func TestADiskThatCannotBeOpened(t *testing.T) {
	for errno, removed := range map[unix.Errno]bool{unix.EIO: true, unix.ENXIO: true, unix.EBUSY: false, unix.EMFILE: false, unix.EPERM: false, unix.ENOENT: false} {
		n := newNode(t)
		n.ids["10.0.0.1 0"] = "naa.6001"
		_, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1"), nil)
		n.must(err)
		n.initiator.ReplaceOpen(func(string) (int, error) { return -1, errno })
		err = n.initiator.Logout(t.Context(), lun(0, "10.0.0.1"))
		if (err == nil) != removed || err != nil && !errors.Is(err, errno) || (n.called("delete < 1") == 1) != removed || (n.called("--logout") == 1) != removed {
			t.Errorf("%v: Logout = %v, calls %q", errno, err, n.calls)
		}
	}
}

// A target that is away may come back, and a pod has the node of its disk.
func TestADeadDiskThatSomethingHas(t *testing.T) {
	n := newNode(t)
	n.ids["10.0.0.1 0"] = "naa.6001"
	d, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1"), nil)
	n.must(err)
	n.users[filepath.Base(d.Path)] = "pod"
	n.initiator.ReplaceOpen(func(string) (int, error) { return -1, unix.ENXIO })
	if err := n.initiator.Logout(t.Context(), lun(0, "10.0.0.1")); !errors.Is(err, volume.ErrInUse) || n.called("delete < 1") > 0 || n.called("--logout") > 0 {
		t.Errorf("Logout = %v, calls %q", err, n.calls)
	}
	delete(n.users, filepath.Base(d.Path))
	n.must(n.initiator.Logout(t.Context(), lun(0, "10.0.0.1")))
	if n.called("--logout") != 1 {
		t.Errorf("calls: %q", n.calls)
	}
}

// What cannot be read is not taken for absent.
func TestSysfsThatCannotBeRead(t *testing.T) {
	const unit = "sys/devices/platform/host1/session1/target1:0:0/1:0:0:"
	for _, broken := range []string{
		"sys/class/iscsi_session", "sys/class/iscsi_connection", "sys/class/iscsi_session/session1/targetname", "sys/class/iscsi_session/session1/target_id",
		"sys/class/iscsi_connection/connection1:0/persistent_port", unit + "0/block", unit + "1/block", unit + "0/block/sd1x0/holders",
	} {
		n := newNode(t)
		n.ids["10.0.0.1 0"], n.ids["10.0.0.1 1"] = "naa.6001", "naa.6002"
		for number := range 2 {
			_, _, err := n.initiator.Login(t.Context(), lun(number, "10.0.0.1"), nil)
			n.must(err)
		}
		n.must(os.RemoveAll(n.at(broken)), os.Symlink(filepath.Base(broken), n.at(broken))) // ELOOP
		if err := n.initiator.Logout(t.Context(), lun(0, "10.0.0.1")); !errors.Is(err, unix.ELOOP) {
			t.Errorf("%s: Logout = %v", broken, err)
		}
		if n.called("--logout") > 0 || n.called("-o delete") > 0 {
			t.Errorf("%s: calls %q", broken, n.calls)
		}
	}
}

func TestPathsWithoutAnIDAreRefused(t *testing.T) {
	n := newNode(t)
	n.ids["10.0.0.1 0"], n.ids["10.0.0.2 0"] = "", ""
	_, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1"), nil)
	n.must(err)
	if _, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1", "10.0.0.2"), nil); !errors.Is(err, openiscsi.ErrNotOneDisk) {
		t.Errorf("Login = %v", err)
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

func TestUsedElsewhere(t *testing.T) {
	n := newNode(t)
	n.ids["10.0.0.1 0"], n.ids["10.0.0.2 0"], n.ids["10.0.0.3 0"] = "naa.6001", "naa.6001", "naa.6002"
	var d openiscsi.Device
	for _, host := range []string{"10.0.0.3", "10.0.0.2", "10.0.0.1"} {
		var err error
		d, _, err = n.initiator.Login(t.Context(), lun(0, host), nil)
		n.must(err)
	}
	for errno, want := range map[unix.Errno]string{unix.EBUSY: n.at("dev/sd2x0"), unix.EIO: "", unix.EMFILE: ""} {
		var opened []string
		n.initiator.ReplaceOpen(func(path string) (int, error) {
			opened = append(opened, path)
			return -1, errno
		})
		got, _, err := n.initiator.UsedElsewhere(t.Context(), d, n.usedBy)
		if got != want || (err != nil) != (errno == unix.EMFILE) || !slices.Equal(opened, []string{n.at("dev/sd2x0")}) {
			t.Errorf("%v: %q, %v, looked at %q", errno, got, err, opened)
		}
	}
}

// A node of the disk that something has been given, such as a pod, is no mount of it.
func TestAUserThatTheKernelDoesNotKnow(t *testing.T) {
	n := newNode(t)
	n.ids["10.0.0.1 0"], n.ids["10.0.0.2 0"] = "naa.6001", "naa.6001"
	d, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1"), nil)
	n.must(err)
	other, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.2"), nil)
	n.must(err)
	n.initiator.ReplaceOpen(func(path string) (int, error) { return unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	n.users[filepath.Base(d.Path)] = "pod"
	if path, user, err := n.initiator.UsedElsewhere(t.Context(), other, n.usedBy); path != d.Path || user != "pod" || err != nil {
		t.Errorf("UsedElsewhere = %q, %q, %v", path, user, err)
	}
	// Of two paths one goes, and the other stays with its session.
	if err := n.initiator.Logout(t.Context(), lun(0, "10.0.0.1", "10.0.0.2")); !errors.Is(err, volume.ErrInUse) || !strings.Contains(err.Error(), "pod") {
		t.Errorf("Logout = %v", err)
	}
	if n.called("-r 2 --logout") != 1 || n.called("-r 1 --logout") != 0 {
		t.Errorf("calls: %q", n.calls)
	}
	if _, err := n.initiator.Find(t.Context(), lun(0, "10.0.0.1")); err != nil {
		t.Errorf("the disk in use: %v", err)
	}
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

// The file of a device that cannot be looked at is not a missing one.
func TestADeviceThatCannotBeLookedAt(t *testing.T) {
	n := newNode(t)
	n.ids["10.0.0.1 0"] = "naa.6001"
	n.initiator.Replace(func(string) (string, error) { return "", &fs.PathError{Op: "stat", Err: unix.EACCES} }, n.put)
	if _, _, err := n.initiator.Login(t.Context(), lun(0, "10.0.0.1"), nil); !errors.Is(err, unix.EACCES) || errors.Is(err, openiscsi.ErrNoDisk) {
		t.Errorf("Login = %v", err)
	}
}
