package emptydir_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/projectquota"
	"github.com/podvol/podvol/util/testenv/calltrace"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/util/testenv/vmtest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/emptydir"
)

// sizeLimit on file systems with project quotas.
func TestProjectQuotasInAMachine(t *testing.T) {
	vmtest.Run(t, func(t *testing.T) {
		for _, fs := range []struct {
			fsType string
			size   int64
			mkfs   []string
			full   error
		}{
			{"xfs", 320 << 20, []string{"mkfs.xfs", "-q"}, unix.ENOSPC},
			{"ext4", 64 << 20, []string{"mkfs.ext4", "-q", "-O", "quota,project", "-E", "quotatype=prjquota"}, unix.EDQUOT},
		} {
			t.Run(fs.fsType, func(t *testing.T) {
				device := loopdev.New(t, fs.size)
				testtool.Need(t, fs.mkfs[0])
				if out, err := exec.CommandContext(t.Context(), fs.mkfs[0], append(fs.mkfs[1:], device.Path)...).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				d := &quotaDisk{t: t, device: device.Path, fsType: fs.fsType, full: fs.full, root: filepath.Join(t.TempDir(), "root")}
				testtool.MkdirAll(t, d.root)
				d.mount("prjquota")
				t.Cleanup(d.unmount)
				d.testLife()
				d.testReboot()
				d.testOwner()
				d.testSharedProject()
				d.testOccupiedNumbers()
				d.testKills()
				d.testWithoutQuotas()
			})
		}
	})
}

// quotaDisk is a real file system with a node's root directory.
type quotaDisk struct {
	t                    *testing.T
	device, fsType, root string
	full                 error
}

func (d *quotaDisk) mount(options string) {
	d.t.Helper()
	testtool.Must(d.t, unix.Mount(d.device, d.root, d.fsType, 0, options))
}

func (d *quotaDisk) unmount() {
	d.t.Helper()
	testtool.Must(d.t, unix.Unmount(d.root, 0))
}

func (d *quotaDisk) plugin() volume.VolumePlugin {
	p := emptydir.New()
	testtool.Must(d.t, p.Init(&volume.Host{RootDir: d.root, Mounter: host.New(host.Config{})}))
	return p
}

// setUp sets a pod's volume up, by an agent that begins anew.
func (d *quotaDisk) setUp(pod *v1.Pod, limit string) (volume.Mounter, volume.VolumePlugin) {
	d.t.Helper()
	p := d.plugin()
	m := mounter(d.t, p, spec("", limit), pod)
	setUp(d.t, m, volume.MounterArgs{})
	return m, p
}

// usage asks the file system itself.
func (d *quotaDisk) usage(id uint32) projectquota.Usage {
	d.t.Helper()
	f, err := os.Open(d.root)
	testtool.Must(d.t, err)
	defer f.Close()
	use, err := projectquota.System{}.Usage(f, id)
	testtool.Must(d.t, err)
	return use
}

// wantUnused: no project has a limit. What it had may still count: xfs frees later.
func (d *quotaDisk) wantUnused() {
	d.t.Helper()
	for id := range uint32(100) {
		if use := d.usage(1<<30 + id); use.Limit != 0 || use.OtherLimits {
			d.t.Errorf("%s: project %d is left with %+v", d.fsType, 1<<30+id, use)
		}
	}
	if left, err := os.ReadDir(filepath.Join(d.root, "plugins/kubernetes.io/empty-dir/projects")); err != nil || len(left) > 0 {
		d.t.Errorf("%s: records %v are left, %v", d.fsType, left, err)
	}
}

// asUser has an ordinary user run a command that finds a directory at /proc/self/fd/3,
// wherever it is.
func (d *quotaDisk) asUser(cmd *exec.Cmd, dir string) (string, error) {
	d.t.Helper()
	open, err := os.Open(dir)
	testtool.Must(d.t, err)
	defer open.Close()
	cmd.ExtraFiles = []*os.File{open}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// fill has an ordinary user write a file, and returns why that failed.
func (d *quotaDisk) fill(path string, megabytes int) (why string) {
	d.t.Helper()
	out, err := d.asUser(exec.CommandContext(d.t.Context(), "dd", "if=/dev/zero", "of=/proc/self/fd/3/"+filepath.Base(path), "bs=1M", fmt.Sprintf("count=%d", megabytes)), filepath.Dir(path))
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
		d.t.Fatal(err)
	}
	if err == nil {
		return ""
	}
	return out
}

func (d *quotaDisk) wantFull(why string) {
	d.t.Helper()
	if !strings.Contains(strings.ToLower(why), d.full.Error()) {
		d.t.Errorf("%s: writing beyond the limit: %q, want %v", d.fsType, why, d.full)
	}
}

func (d *quotaDisk) testLife() {
	web, other := fakehost.Pod("web"), fakehost.Pod("other")
	web.Spec.HostUsers = new(false)
	m, p := d.setUp(web, "4Mi")
	beside, _ := d.setUp(other, "1Mi")
	testtool.Must(d.t, os.Mkdir(filepath.Join(m.GetPath(), "sub"), 0o777))
	testtool.Must(d.t, os.Chmod(filepath.Join(m.GetPath(), "sub"), 0o777))
	d.wantFull(d.fill(filepath.Join(m.GetPath(), "sub/big"), 6))
	d.wantFull(d.fill(filepath.Join(beside.GetPath(), "big"), 2))
	d.setUp(web, "8Mi")
	if why := d.fill(filepath.Join(m.GetPath(), "sub/big"), 6); why != "" {
		d.t.Errorf("%s: with a higher limit: %s", d.fsType, why)
	}
	counted, err := m.GetMetrics(d.t.Context())
	testtool.Must(d.t, err)
	u, err := p.NewUnmounter("cache", web.UID)
	testtool.Must(d.t, err)
	walked, err := u.GetMetrics(d.t.Context())
	testtool.Must(d.t, err)
	if counted.Used.Cmp(*walked.Used) != 0 || counted.InodesUsed.Cmp(*walked.InodesUsed) != 0 || counted.Capacity.Value() != 8<<20 {
		d.t.Errorf("%s: counted %v bytes and %v inodes of %v, walked %v and %v", d.fsType, counted.Used, counted.InodesUsed, counted.Capacity, walked.Used, walked.InodesUsed)
	}
	tearDown(d.t, p, web)
	tearDown(d.t, p, other)
	d.wantUnused()
}

// Limits hold after the file system was mounted again, as after a reboot.
func (d *quotaDisk) testReboot() {
	pod := fakehost.Pod("web")
	m, _ := d.setUp(pod, "1Mi")
	testtool.WriteFile(d.t, "data", m.GetPath(), "file")
	d.unmount()
	d.mount("prjquota")
	_, p := d.setUp(pod, "1Mi")
	d.wantFull(d.fill(filepath.Join(m.GetPath(), "big"), 2))
	tearDown(d.t, p, pod)
	d.wantUnused()
}

// ownerVar names the file whose project TestOwnerTakesItOut changes, in a process of its own.
const ownerVar = "PODVOL_EMPTYDIR_OWNER"

func TestOwnerTakesItOut(t *testing.T) {
	path := os.Getenv(ownerVar)
	if path == "" {
		return
	}
	f, err := os.Create(path)
	testtool.Must(t, err)
	testtool.Must(t, projectquota.System{}.SetProject(f, projectquota.Project{}))
}

// The owner of a file can take it out of the limit, except in a user namespace.
func (d *quotaDisk) testOwner() {
	pod := fakehost.Pod("web")
	m, p := d.setUp(pod, "1Mi")
	for _, isolated := range []bool{false, true} {
		cmd := exec.CommandContext(d.t.Context(), "/proc/self/exe", "-test.run=^TestOwnerTakesItOut$")
		cmd.Env = append(os.Environ(), ownerVar+"=/proc/self/fd/3/"+fmt.Sprint("isolated-", isolated))
		if isolated {
			ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 65534, Size: 1}}
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, Credential: &syscall.Credential{}}
		}
		if out, err := d.asUser(cmd, m.GetPath()); (err != nil) != isolated || isolated && !strings.Contains(out, unix.EINVAL.Error()) {
			d.t.Errorf("%s: in a user namespace: %v: %v, %s", d.fsType, isolated, err, out)
		}
	}
	tearDown(d.t, p, pod)
	d.wantUnused()
}

// A project that the directories above hand on is left as it is.
func (d *quotaDisk) testSharedProject() {
	pod := fakehost.Pod("shared")
	above, err := os.Open(testtool.MkdirAll(d.t, d.root, "pods", string(pod.UID)))
	testtool.Must(d.t, err)
	defer above.Close()
	testtool.Must(d.t, errors.Join(projectquota.System{}.SetProject(above, projectquota.Project{ID: 77, Inherits: true}),
		projectquota.System{}.SetLimit(above, 77, 16<<20)))
	_, p := d.setUp(pod, "1Mi")
	if use := d.usage(77); use.Limit != 16<<20 || use.Inodes < 3 {
		d.t.Errorf("%s: the project has %+v", d.fsType, use)
	}
	tearDown(d.t, p, pod)
	if use := d.usage(77); use.Limit != 16<<20 {
		d.t.Errorf("%s: afterwards the project has %+v", d.fsType, use)
	}
	d.wantUnused()
}

// A stranger has files of all the numbers that are tried first.
func (d *quotaDisk) testOccupiedNumbers() {
	strangers := testtool.MkdirAll(d.t, d.root, "strangers")
	for id := range uint32(100) {
		f, err := os.Create(filepath.Join(strangers, fmt.Sprint(id)))
		testtool.Must(d.t, err)
		testtool.Must(d.t, errors.Join(projectquota.System{}.SetProject(f, projectquota.Project{ID: 1<<30 + id}), f.Close()))
	}
	pod := fakehost.Pod("web")
	m, p := d.setUp(pod, "1Mi")
	d.wantFull(d.fill(filepath.Join(m.GetPath(), "big"), 2))
	tearDown(d.t, p, pod)
	testtool.Must(d.t, os.RemoveAll(strangers))
	d.wantUnused()
}

// crashVar is the root directory of TestQuotaCrashScenario.
const crashVar = "PODVOL_EMPTYDIR_CRASH"

// TestQuotaCrashScenario is what testKills starts.
func TestQuotaCrashScenario(t *testing.T) {
	root := os.Getenv(crashVar)
	if root == "" {
		return
	}
	d := &quotaDisk{t: t, root: root}
	m, p := d.setUp(fakehost.Pod("web"), "1Mi")
	testtool.WriteFile(t, "data", m.GetPath(), "file")
	tearDown(t, p, fakehost.Pod("web"))
}

// An agent is killed in the middle. The next one finishes, or removes what is there.
func (d *quotaDisk) testKills() {
	first, step := testtool.Part(5)
	pod := fakehost.Pod("web")
	for n := first; ; n += step {
		killed, call := calltrace.Process{Args: []string{"-test.run=^TestQuotaCrashScenario$"}, Env: []string{crashVar + "=" + d.root}}.
			RunUntil(d.t, calltrace.Point{N: n, After: n%2 == 0}, calltrace.ChangesBelow(d.root))
		p := d.plugin()
		if n%4 < 2 {
			var m volume.Mounter
			m, p = d.setUp(pod, "1Mi")
			d.wantFull(d.fill(filepath.Join(m.GetPath(), "big"), 2))
		}
		tearDown(d.t, p, pod)
		d.wantUnused()
		if d.t.Failed() {
			d.t.Fatalf("killed at call %d: %s", n, call)
		}
		if !killed {
			return
		}
	}
}

func (d *quotaDisk) testWithoutQuotas() {
	d.unmount() // which frees everything
	d.mount("prjquota")
	for id := range uint32(100) {
		if use := d.usage(1<<30 + id); use != (projectquota.Usage{}) {
			d.t.Errorf("%s: project %d is left with %+v", d.fsType, 1<<30+id, use)
		}
	}
	pod := fakehost.Pod("web")
	d.setUp(pod, "1Mi")
	d.unmount()
	d.mount("")
	m, p := d.setUp(pod, "1Mi")
	if why := d.fill(filepath.Join(m.GetPath(), "big"), 2); why != "" {
		d.t.Errorf("%s: without quotas: %s", d.fsType, why)
	}
	tearDown(d.t, p, pod)
}
