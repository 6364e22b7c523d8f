package csi_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/calltrace"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/csi"
)

// stagerVar has TestAStagerThatDies be the one: its root, socket and directory of what is staged.
const stagerVar = "PODVOL_TEST_STAGER"

// TestAStagerThatDies kills a program at each change that staging and unstaging make. Another
// one has the volume then, unless the driver has it staged for the first; and the first one's
// successor takes nothing from it.
func TestAStagerThatDies(t *testing.T) {
	if given := os.Getenv(stagerVar); given != "" {
		stageAndUnstage(t, strings.Split(given, "\n"))
		return
	}
	nstest.RunAlone(t, func(t *testing.T) {
		b := newBenchOn(t, fakehost.NewOnKernel(t, host.New(host.Config{})), everything(), csi.Config{StagedDir: filepath.Join(t.TempDir(), "csi")})
		t.Setenv("TMPDIR", t.TempDir()) // who is killed leaves his own there
		n, blocked := 1, 0
		for ; b.dieAt(n, &blocked); n++ {
			b.wantNothing()
		}
		t.Logf("%d moments, at %d of which it was staged", n-1, blocked)
		if n < 20 || blocked == 0 {
			t.Errorf("%d moments, at %d of which it was staged", n-1, blocked)
		}
	})
}

func stageAndUnstage(t *testing.T, given []string) {
	p, err := csi.New(csi.Config{Drivers: map[string]string{driverName: given[1]}, StagedDir: given[2]})
	b := &bench{t: t, host: fakehost.NewOnKernel(t, host.New(host.Config{})), plugin: p}
	b.host.RootDir = given[0]
	b.must(err, p.Init(b.host), b.mountDevice(pvSpec(), volume.DeviceMounterArgs{}), b.unmountDevice(pvSpec()), p.Close())
}

// dieAt has a program die before its n-th change; false: it makes fewer.
func (b *bench) dieAt(n int, blocked *int) bool {
	b.t.Helper()
	root, changes, at := b.t.TempDir(), 0, ""
	output, err := os.Create(filepath.Join(b.t.TempDir(), "output"))
	b.must(err)
	defer output.Close()
	status, killed, err := calltrace.Process{
		Args: []string{"-test.run=^TestAStagerThatDies$"}, Env: []string{stagerVar + "=" + strings.Join([]string{root, b.socket, b.config.StagedDir}, "\n")},
		Limit: time.Minute, Stdout: output, Stderr: output,
		At: func(c calltrace.Call) calltrace.Action {
			mine := calltrace.Below(c.Path, root) || calltrace.Below(c.Path, filepath.Dir(b.config.StagedDir)) || strings.HasPrefix(c.Path, "/proc/self/fd/")
			if !c.Changes || !mine {
				return calltrace.Action{}
			}
			changes++
			at = c.Text
			return calltrace.Action{Kill: changes == n}
		},
	}.Run()
	b.must(err)
	if !killed {
		if said, _ := os.ReadFile(output.Name()); status.ExitStatus() != 0 {
			b.t.Fatalf("exit code %d: %s", status.ExitStatus(), said)
		}
		return false
	}
	staged := b.driver.Staged()
	switch err := b.mountDevice(pvSpec(), volume.DeviceMounterArgs{}); {
	case len(staged) > 0:
		*blocked++
		if !errors.Is(err, csi.ErrStagedElsewhere) || volume.IsUncertain(err) {
			b.t.Errorf("killed at %s, staged at %v: %v", at, staged, err)
		}
	case err != nil:
		b.t.Errorf("killed at %s, nothing is staged: %v", at, err)
	}
	before := b.driver.Staged()
	heir := &bench{t: b.t, host: fakehost.NewOnKernel(b.t, host.New(host.Config{})), driver: b.driver, socket: b.socket, config: b.config, drivers: b.drivers, attachments: b.attachments}
	heir.host.RootDir = root
	heir.restart()
	found, err := heir.plugin.FindStaged(b.t.Context())
	b.must(err)
	if len(found) > 0 {
		if err := heir.unmountDevice(pvSpec()); err != nil {
			b.t.Errorf("killed at %s: its heir: %v", at, err)
		}
	}
	if found, err := heir.plugin.FindStaged(b.t.Context()); len(found) > 0 || err != nil {
		b.t.Errorf("killed at %s: its heir has left %v, %v", at, found, err)
	}
	if len(staged) == 0 && b.driver.Staged()["h1"] != before["h1"] {
		b.t.Errorf("killed at %s: its heir has unstaged the volume of another", at)
	}
	b.must(b.mountDevice(pvSpec(), volume.DeviceMounterArgs{}), b.unmountDevice(pvSpec()))
	if _, err := os.Lstat(b.config.StagedDir); !errors.Is(err, unix.ENOENT) {
		b.t.Errorf("killed at %s: %s is left", at, b.config.StagedDir)
	}
	return true
}
