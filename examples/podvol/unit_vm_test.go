package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/inotify"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/util/testenv/vmtest"
)

const (
	unitManifests = "/etc/podvol/manifests"
	unitRoot      = "/var/lib/podvol"
)

// unitMachine is a machine whose systemd runs the unit.
type unitMachine struct {
	t       *testing.T
	systemd *vmtest.Systemd
	log     string
}

// mounts are the machine's mounts below the root directory, as containers see them, with their IDs.
func (m unitMachine) mounts() (below []string) {
	m.t.Helper()
	table, err := m.systemd.Command(m.t.Context(), "cat", "/proc/self/mountinfo").Output()
	testtool.Must(m.t, err)
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[4], unitRoot+"/pods/") {
			below = append(below, fields[0]+" "+fields[4])
		}
	}
	return below
}

// await waits until the node has said so many times that its volume is mounted.
func (m unitMachine) await(times int) {
	m.t.Helper()
	changes, err := inotify.New()
	testtool.Must(m.t, err)
	late := time.AfterFunc(2*time.Minute, func() { _ = changes.Close() })
	defer func() {
		late.Stop()
		_ = changes.Close()
	}()
	_, err = changes.Add(m.log, unix.IN_MODIFY)
	testtool.Must(m.t, err)
	for {
		text, err := os.ReadFile(m.log)
		testtool.Must(m.t, err)
		if strings.Count(string(text), " mounted ") >= times {
			return
		}
		if _, err := changes.Read(); err != nil {
			m.t.Fatalf("%v: its log: %s; %s", err, text, m.systemd.Systemctl(m.t, "show", "podvol"))
		}
	}
}

// The unit as it is, on systemd: its mounts are the machine's, and stay while it is restarted,
// killed and stopped.
func TestUnitInAMachine(t *testing.T) {
	vmtest.Run(t, func(t *testing.T) {
		m := unitMachine{t, vmtest.StartSystemd(t), testtool.WriteFile(t, "", t.TempDir(), "log")}
		testtool.MkdirAll(t, unitManifests)
		testtool.WriteFile(t, podNamed("a", "{name: memory, emptyDir: {medium: Memory}}"), unitManifests, "a.yaml")
		program, err := os.Executable()
		testtool.Must(t, err)
		unit, err := os.ReadFile(unitFile)
		testtool.Must(t, err)
		testtool.WriteFile(t, string(unit), "/run/systemd/system", unitFile)
		// The machine has no other units, and the program is this one.
		testtool.MkdirAll(t, "/run/systemd/system", unitFile+".d")
		_, arguments, _ := strings.Cut(readUnit(t)["Service.ExecStart"], " ")
		testtool.WriteFile(t, "[Unit]\nDefaultDependencies=no\n[Service]\nEnvironment="+mainVar+"=1\nExecStart=\nExecStart="+program+" "+arguments+
			"\nStandardOutput=append:"+m.log+"\nStandardError=append:"+m.log+"\n", "/run/systemd/system", unitFile+".d", "here.conf")
		m.systemd.Systemctl(t, "daemon-reload")

		m.systemd.Systemctl(t, "start", "podvol")
		m.await(1)
		before := m.mounts()
		if len(before) != 1 {
			t.Fatalf("the machine sees %q", before)
		}
		for i, verb := range [][]string{{"restart", "podvol"}, {"kill", "--kill-whom=main", "--signal=SIGKILL", "podvol"}} {
			m.systemd.Systemctl(t, verb...)
			m.await(2 + i)
			if now := m.mounts(); len(now) != 1 || now[0] != before[0] {
				t.Errorf("after %s the machine sees %q", verb[0], now)
			}
		}
		m.systemd.Systemctl(t, "stop", "podvol")
		if now := m.mounts(); len(now) != 1 || now[0] != before[0] {
			t.Errorf("after the stop the machine sees %q", now)
		}
		if state := m.systemd.Systemctl(t, "show", "--property=Result", "podvol"); strings.TrimSpace(state) != "Result=success" {
			t.Errorf("the service's %s", state)
		}
	})
}
