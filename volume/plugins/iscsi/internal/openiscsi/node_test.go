package openiscsi_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

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
