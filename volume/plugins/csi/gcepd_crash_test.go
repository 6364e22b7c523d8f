package csi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/agent"
	"github.com/podvol/podvol/util/testenv/calltrace"
	"github.com/podvol/podvol/util/testenv/invariant"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins/csi"
	csicontroller "github.com/podvol/podvol/volume/plugins/csi/controller"
	"github.com/podvol/podvol/volume/selfattach"
	"github.com/podvol/podvol/volume/volumemanager"
)

// diskSite is what outlives the processes that mount a disk on this machine, and attach it.
type diskSite struct {
	Dir, Socket, Disks string
	PV                 *v1.PersistentVolume
	Claim              *v1.PersistentVolumeClaim
	// Task is what the process does: live, mount again, or release.
	Task string
	// Content is what the process that lives writes.
	Content string
}

const (
	// diskSiteVar has TestAProcessThatAttaches be one of these processes.
	diskSiteVar = "PODVOL_TEST_DISK_SITE"
	// diskParts are those that the gate takes one of (testtool.Part).
	diskParts = 24
	diskPod   = types.UID("uid-disk")
)

func (s *diskSite) root() string    { return filepath.Join(s.Dir, "root") }
func (s *diskSite) records() string { return filepath.Join(s.Dir, "attached") }
func (s *diskSite) volume() string {
	return filepath.Join(s.root(), "pods", string(diskPod), "volumes/kubernetes.io~csi", s.PV.Name, "mount")
}

// noted is where a process notes that its pod has written.
func (s *diskSite) noted() string { return filepath.Join(s.Dir, "noted") }

func (s *diskSite) pod() *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.Claim.Namespace, Name: "disk", UID: diskPod}, Spec: v1.PodSpec{
		Containers: []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
		Volumes:    []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: s.Claim.Name}}}}}}
}

// TestAProcessThatAttaches is not a test of its own: it is a process of the next one.
func TestAProcessThatAttaches(t *testing.T) {
	given := os.Getenv(diskSiteVar)
	if given == "" {
		return
	}
	var s diskSite
	testtool.Must(t, json.Unmarshal([]byte(given), &s))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	plugin, err := csicontroller.ForNode(csi.Config{Drivers: map[string]string{gcePD: s.Socket}, StagedDir: filepath.Join(s.Dir, "run/staged")})
	testtool.Must(t, err)
	defer plugin.Close()
	plugins := []volume.VolumePlugin{plugin}
	attacher, err := selfattach.Open(selfattach.Config{Dir: s.records(), SharedDir: filepath.Join(s.Dir, "run/attached"), NodeName: "node1", Plugins: plugins})
	testtool.Must(t, err)
	store := objects.NewStore()
	testtool.Must(t, store.Load(ctx, 0, s.PV, s.Claim))
	config := volumemanager.Config{RootDir: s.root(), NodeName: "node1", Objects: store, Plugins: plugins, Attachments: attacher}
	if s.Task == "release" {
		config.Containers = agent.NoContainers{}
	}
	manager, err := volumemanager.New(config)
	testtool.Must(t, err)
	life, end := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- manager.Run(life) }()
	go func() { ended <- selfattach.Run(life, attacher, manager) }()
	testtool.Must(t, manager.WaitForRecovery(ctx))
	s.do(t, ctx, manager)
	testtool.Must(t, attacher.WaitForDetached(ctx))
	end()
	testtool.Must(t, errors.Join(<-ended, <-ended))
}

// do does the process's task.
func (s *diskSite) do(t *testing.T, ctx context.Context, manager *volumemanager.Manager) {
	if s.Task == "release" {
		manager.PodsComplete()
		testtool.Must(t, manager.WaitForUnmounted(ctx, diskPod))
		return
	}
	for { // a call that a killed process has begun may be under way
		_, err := manager.SetUpPod(ctx, s.pod())
		if err == nil {
			break
		}
		testtool.Must(t, ctx.Err())
	}
	file := filepath.Join(s.volume(), "file")
	if s.Task == "live" {
		testtool.Must(t, writeSynced(file, s.Content))
		testtool.Must(t, os.WriteFile(s.noted(), []byte(s.Content), 0o600))
	} else if data, err := os.ReadFile(file); !s.may(string(data)) || err != nil {
		t.Errorf("the file has %q, %v", data, err)
	}
	for {
		err := manager.TearDownPod(ctx, diskPod)
		if err == nil {
			break
		}
		testtool.Must(t, errors.Join(ctx.Err()))
	}
}

func writeSynced(path, content string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteAt([]byte(content), 0) // of one length each time
	return errors.Join(err, file.Sync(), file.Close())
}

// may reports whether a pod may read this: what was noted last, or what was written since.
func (s *diskSite) may(data string) bool {
	noted, _ := os.ReadFile(s.noted())
	return string(noted) <= data && data <= s.Content // by their numbers
}

// TestGCEPersistentDisksOfKilledProcesses kills the process that attaches and mounts a disk,
// unmounts and detaches it, before system calls that change something. The next one has the pod
// again, or has to release what is left of it. At each call of both the disk is attached once at
// most, and it is attached as long as it is mounted; in the end nothing is left, but the data.
func TestGCEPersistentDisksOfKilledProcesses(t *testing.T) {
	withDisks(t, func(t *testing.T, programs string) {
		d := newDisks(t, programs)
		s := d.site()
		s.run(t, calltrace.Point{})
		s.assertGone(t)
		first, step := testtool.Part(diskParts)
		points := 0
		for n := first; s.killAt(t, n) && !t.Failed(); n += step {
			points++
		}
		t.Logf("killed before %d system calls, and each time what was left was mounted again, or released", points)
		if points < 100/step {
			t.Errorf("only at %d system calls", points)
		}
		s.Task = "mount again"
		s.run(t, calltrace.Point{})
		d.remove(volume.NewSpecFromPersistentVolume(s.PV, false))
	})
}

// site has a disk made for processes.
func (d *disks) site() *diskSite {
	d.t.Helper()
	claim := pvbuild.NewClaim("data", "10Gi")
	pv := d.provision(claim, "ext4")
	pv.UID, pv.Status.Phase = "uid-pv", v1.VolumeBound
	pv.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	claim.Spec.VolumeName, claim.Status.Phase = pv.Name, v1.ClaimBound
	dir, err := filepath.EvalSymlinks(d.t.TempDir())
	d.must(err, os.Mkdir(filepath.Join(dir, "run"), 0o755))
	return &diskSite{Dir: dir, Socket: d.socket, Disks: d.dir, PV: pv, Claim: claim, Task: "live", Content: "content 0000"}
}

// killAt kills processes before their n-th call, and has others go on. It reports false if they
// make fewer.
func (s *diskSite) killAt(t *testing.T, n int) bool {
	t.Helper()
	for i, next := range []string{"mount again", "release"} {
		s.Task, s.Content = "live", fmt.Sprintf("content %04d", 2*n+i)
		killed, call := s.run(t, calltrace.Point{N: n})
		if !killed {
			return false
		}
		s.Task = next
		s.run(t, calltrace.Point{})
		if s.assertGone(t); t.Failed() {
			t.Logf("killed before call %d, %s; then: %s", n, call, next)
		}
	}
	return true
}

// run runs a process until the point; the zero point is its end.
func (s *diskSite) run(t *testing.T, until calltrace.Point) (killed bool, call string) {
	t.Helper()
	given, err := json.Marshal(s)
	testtool.Must(t, err)
	changes := calltrace.ChangesBelow(s.Dir)
	return calltrace.Process{Args: []string{"-test.run=^TestAProcessThatAttaches$", "-test.timeout=5m"}, Env: []string{diskSiteVar + "=" + string(given)}}.
		RunUntil(t, until, func(c calltrace.Call) bool {
			counts := c.Changes && (changes(c) || strings.HasPrefix(c.Path, "socket:"))
			if counts {
				s.assertAttached(t, c.Text)
			}
			return counts
		})
}

// devices are the devices of the disk.
func (s *diskSite) devices(t *testing.T) (devices []string) {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	testtool.Must(t, err)
	for _, file := range files {
		backing, err := os.ReadFile(file) // not there: it was detached just now
		if err == nil && strings.HasPrefix(string(backing), s.Disks+"/") {
			devices = append(devices, filepath.Join("/dev", filepath.Base(filepath.Dir(filepath.Dir(file)))))
		}
	}
	return devices
}

// links are the cloud's attachments.
func (s *diskSite) links(t *testing.T) []string {
	t.Helper()
	links, err := filepath.Glob(filepath.Join(s.Disks, "*.device"))
	testtool.Must(t, err)
	return links
}

// assertAttached: what holds at any time.
func (s *diskSite) assertAttached(t *testing.T, when string) {
	t.Helper()
	devices := s.devices(t)
	if len(devices) > 1 {
		t.Errorf("at %s: %v are of one disk", when, devices)
	}
	entries, err := table.Kernel().All()
	testtool.Must(t, err)
	for _, e := range entries {
		if slices.Contains(devices, e.Source) && len(s.links(t)) == 0 {
			t.Errorf("at %s: %s is mounted at %s, and detached", when, e.Source, e.Target)
		}
	}
}

// assertGone: nothing is left of a pod.
func (s *diskSite) assertGone(t *testing.T) {
	t.Helper()
	mounted, err := invariant.Mounted(s.root(), table.Kernel())
	testtool.Must(t, err)
	keys, err := invariant.Records(s.root())
	testtool.Must(t, err)
	if devices, links := s.devices(t), s.links(t); len(mounted)+len(keys)+len(devices)+len(links) > 0 {
		t.Errorf("left: mounts %v, records %v, devices %v, attachments %v", mounted, keys, devices, links)
	}
	for _, dir := range []string{s.records(), filepath.Join(s.root(), "pods"), filepath.Join(s.root(), "plugins"), filepath.Join(s.Dir, "run")} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err == nil && !s.mayStay(path, e) {
				t.Errorf("left: %s", path)
			}
			return err
		})
		if !errors.Is(err, fs.ErrNotExist) {
			testtool.Must(t, err)
		}
	}
}

// mayStay reports whether a file may be left of a killed process. What names a record that is not
// there counts for nothing to programs of this machine, nor do empty directories in /run.
func (s *diskSite) mayStay(path string, e fs.DirEntry) bool {
	below, _ := filepath.Rel(s.Dir, path)
	if e.IsDir() {
		return slices.Contains([]string{"attached", "root/pods", "root/plugins", "root/plugins/kubernetes.io", "root/plugins/kubernetes.io/csi"}, below) || calltrace.Below(below, "run")
	}
	_, err := os.Stat(path)
	return calltrace.Below(below, "run") && e.Type() == fs.ModeSymlink && errors.Is(err, fs.ErrNotExist)
}
