package kubeletroot_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume/kubeletroot"
)

// mounts is a mount table that does not change.
type mounts []mount.Entry

func (m mounts) At(path string) (mount.Entry, bool, error) {
	i := slices.IndexFunc(m, func(e mount.Entry) bool { return e.Target == path })
	if i < 0 {
		return mount.Entry{}, false, nil
	}
	return m[i], true, nil
}
func (m mounts) BySource(string) ([]mount.Entry, error)    { return nil, nil }
func (m mounts) ByDevice(uint64) ([]mount.Entry, error)    { return nil, nil }
func (m mounts) All() ([]mount.Entry, error)               { return slices.Clone(m), nil }
func (m mounts) Subscribe(context.Context) <-chan struct{} { return nil }

// root is a kubelet's root directory on a disk.
type root struct {
	*testing.T
	dir    string
	mounts mounts
}

func newRoot(t *testing.T) *root {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	testtool.Must(t, err)
	return &root{T: t, dir: dir}
}

func (r *root) mkdir(name ...string) string {
	return testtool.MkdirAll(r.T, append([]string{r.dir}, name...)...)
}

func (r *root) file(text string, name ...string) {
	testtool.WriteFile(r.T, text, r.mkdir(name[:len(name)-1]...), name[len(name)-1])
}

func (r *root) mounted(fstype, source string, name ...string) {
	r.mounts = append(r.mounts, mount.Entry{ID: len(r.mounts) + 1, Target: r.mkdir(name...), FSType: fstype, Source: source})
}

// volume sets a CSI volume up as the kubelet does.
func (r *root) volume(uid, name, driver, handle string) {
	r.file(fmt.Sprintf(`{"driverName":%q,"volumeHandle":%q,"specVolID":"pv"}`, driver, handle), "pods", uid, "volumes", "kubernetes.io~csi", name, "vol_data.json")
	r.mounted("ext4", "/dev/sdb", "pods", uid, "volumes", "kubernetes.io~csi", name, "mount")
	device := r.device(driver, handle)
	r.mounted("ext4", "/dev/sdb", append(device, "globalmount")...)
}

func (r *root) device(driver, handle string) []string {
	device := []string{"plugins", "kubernetes.io", "csi", driver, fmt.Sprintf("%x", sha256.Sum256([]byte(handle)))}
	r.file(fmt.Sprintf(`{"driverName":%q,"volumeHandle":%q}`, driver, handle), append(device, "vol_data.json")...)
	return device
}

// found are the findings, as "kind: path" below the root.
func (r *root) found(c kubeletroot.Config) (all []string) {
	r.Helper()
	c.RootDir, c.Mounts = r.dir, r.mounts
	if c.CgroupDir == "" {
		c.CgroupDir = "/nonexistent"
	}
	report, err := kubeletroot.Examine(r.Context(), c)
	testtool.Must(r.T, err)
	for _, f := range report.Findings {
		if f.Err == nil || f.Advice == "" {
			r.Errorf("%+v says nothing", f)
		}
		rest, err := filepath.Rel(r.dir, f.Path)
		testtool.Must(r.T, err)
		all = append(all, string(f.Kind)+": "+rest)
	}
	slices.Sort(all)
	return all
}

func (r *root) wantFound(c kubeletroot.Config, want ...string) {
	r.Helper()
	slices.Sort(want)
	if diff := cmp.Diff(want, r.found(c)); diff != "" {
		r.Errorf("found (-want +got):\n%s", diff)
	}
}

func pods(uids ...types.UID) map[types.UID]bool {
	known := make(map[types.UID]bool)
	for _, uid := range uids {
		known[uid] = true
	}
	return known
}

func TestAHealthyRoot(t *testing.T) {
	r := newRoot(t)
	r.volume("uid-1", "pv-1", "disk.example.com", "h1")
	r.mounted("tmpfs", "tmpfs", "pods", "uid-1", "volumes", "kubernetes.io~projected", "token")
	r.mkdir("pods", "uid-2", "volumes", "kubernetes.io~empty-dir", "cache")
	r.mkdir("pods", "uid-3", "containers") // a pod whose volumes have gone
	r.mkdir("pods", "uid-1", "volumes", "kubernetes.io~csi", "begun")
	r.wantFound(kubeletroot.Config{Pods: pods("uid-1", "uid-2")})
	r.wantFound(kubeletroot.Config{}) // nothing is known of pods
}

func TestOrphansAndLeaks(t *testing.T) {
	r := newRoot(t)
	r.mkdir("pods", "gone", "volumes", "kubernetes.io~empty-dir", "cache")
	r.mounted("tmpfs", "tmpfs", "pods", "leaky", "volumes", "kubernetes.io~secret", "s")
	r.volume("uid-1", "pv-1", "disk.example.com", "h1")
	r.mounted("ext4", "/dev/sdc", append(r.device("disk.example.com", "h2"), "globalmount")...)
	device := filepath.Join(append(r.device("disk.example.com", "h2"), "globalmount")...)
	orphans := []string{
		"pod directory without pod: pods/gone", "pod directory without pod: pods/leaky",
		"leaked mount: pods/leaky/volumes/kubernetes.io~secret/s",
	}
	r.wantFound(kubeletroot.Config{Pods: pods("uid-1")}, append(orphans, "leaked mount: "+device)...)
	r.wantFound(kubeletroot.Config{}, "leaked mount: "+device)

	for name, make := range map[string]func(dir string){
		"cgroupfs": func(dir string) { testtool.MkdirAll(t, dir, "memory", "kubepods", "burstable", "poduid-1", "c1") },
		"systemd": func(dir string) {
			testtool.MkdirAll(t, dir, "kubepods.slice", "kubepods-burstable.slice", "kubepods-burstable-poduid_1.slice", "cri-1.scope")
		},
	} {
		dir := t.TempDir()
		make(dir)
		t.Log(name)
		r.wantFound(kubeletroot.Config{CgroupDir: dir}, append(orphans, "leaked mount: "+device)...)
	}
}

func TestVolumeData(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "no JSON": "hunter2", "no handle": `{"driverName":"hunter2"}`, "numbers": `{"driverName":1,"volumeHandle":2}`} {
		t.Run(name, func(t *testing.T) {
			r := newRoot(t)
			r.volume("uid-1", "pv-1", "disk.example.com", "h1")
			r.file(text, "pods", "uid-1", "volumes", "kubernetes.io~csi", "pv-1", "vol_data.json")
			device := r.device("disk.example.com", "h1")
			r.file(text, append(device, "vol_data.json")...)
			r.file(text, "plugins", "kubernetes.io", "csi", "volumeDevices", "pv-2", "data", "vol_data.json")
			const kind = "CSI volume without its vol_data.json: "
			r.wantFound(kubeletroot.Config{}, kind+"pods/uid-1/volumes/kubernetes.io~csi/pv-1/vol_data.json", kind+filepath.Join(device...)+"/vol_data.json",
				kind+"plugins/kubernetes.io/csi/volumeDevices/pv-2/data/vol_data.json")
			report, err := kubeletroot.Examine(t.Context(), kubeletroot.Config{RootDir: r.dir, Mounts: r.mounts})
			if err != nil || strings.Contains(fmt.Sprintf("%+v", report), "hunter2") {
				t.Errorf("what a file has is shown: %+v, %v", report, err)
			}
		})
	}
	r := newRoot(t)
	r.volume("uid-1", "pv-1", "disk.example.com", "h1")
	testtool.Must(t, os.Remove(filepath.Join(r.dir, "pods/uid-1/volumes/kubernetes.io~csi/pv-1/vol_data.json")))
	r.file(`{"driverName":"d","volumeHandle":"h"}`, "pods", "uid-2", "volumes", "kubernetes.io~csi", "pv-2", "vol_data.json")
	other := filepath.Join(r.device("disk.example.com", "h3")...)
	testtool.Must(t, os.Rename(filepath.Join(r.dir, other), filepath.Join(r.dir, filepath.Dir(other), "of-another")))
	r.wantFound(kubeletroot.Config{}, "CSI volume without its vol_data.json: pods/uid-1/volumes/kubernetes.io~csi/pv-1/vol_data.json",
		"vol_data.json without its CSI volume: pods/uid-2/volumes/kubernetes.io~csi/pv-2/vol_data.json",
		"CSI volume without its vol_data.json: "+filepath.Dir(other)+"/of-another/vol_data.json")
}

// Each server is asked once, and all are waited for together.
func TestStaleServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoot(t)
		for i, fs := range []struct{ fstype, source string }{
			{"nfs4", "dead:/a"}, {"nfs4", "dead:/b"}, {"nfs", "[fd00::1]:/a"}, {"nfs", "stale:/a"}, {"cifs", "//secure/share"}, {"fuse.sshfs", "host:"}, {"ext4", "/dev/sda"},
		} {
			r.mounted(fs.fstype, fs.source, "pods", "uid-1", "volumes", "kubernetes.io~nfs", fmt.Sprint("v", i))
		}
		release := make(chan struct{})
		defer close(release)
		asked := make(chan string, 10)
		start := time.Now()
		r.wantFound(kubeletroot.Config{Ask: func(path string) error {
			asked <- filepath.Base(path)
			switch filepath.Base(path) {
			case "v0":
				<-release
			case "v3":
				return unix.ESTALE
			case "v4":
				return unix.EACCES
			}
			return nil
		}}, "stale server: pods/uid-1/volumes/kubernetes.io~nfs/v0", "stale server: pods/uid-1/volumes/kubernetes.io~nfs/v3")
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("it took %v", took)
		}
		if len(asked) != 5 {
			t.Errorf("%d servers were asked", len(asked))
		}
	})
}

// Whatever a root has, it is looked at without harm, and within bounds.
func TestHostileRoots(t *testing.T) {
	r := newRoot(t)
	outside := testtool.MkdirAll(t, t.TempDir(), "uid-9", "volumes", "kubernetes.io~secret", "private")
	csi := r.mkdir("pods", "uid-1", "volumes", "kubernetes.io~csi", "pv\n1")
	testtool.Must(t, unix.Mkfifo(filepath.Join(csi, "vol_data.json"), 0o600))
	linked := r.mkdir("pods", "uid-1", "volumes", "kubernetes.io~csi", "linked")
	testtool.Must(t, os.Symlink("/etc/shadow", filepath.Join(linked, "vol_data.json")))
	testtool.Must(t, os.Symlink(filepath.Join(outside, "../../.."), filepath.Join(r.dir, "pods", "link")))
	testtool.Must(t, os.Symlink(filepath.Dir(outside), filepath.Join(r.mkdir("pods", "uid-2", "volumes"), "kubernetes.io~secret")))
	r.file("a file", "pods", "no-pod")
	r.file("a file", "pods", "uid-3", "volumes")
	const kind = "CSI volume without its vol_data.json: pods/uid-1/volumes/kubernetes.io~csi/"
	r.wantFound(kubeletroot.Config{Pods: pods("uid-1")}, kind+"linked/vol_data.json", kind+"pv\n1/vol_data.json")

	var lines []string
	truncated, err := kubeletroot.List(r.dir, 0, func(line string) { lines = append(lines, line) })
	text := strings.Join(lines, "\n")
	if err != nil || truncated || strings.Contains(text, "private") || strings.Contains(text, "shadow") || !strings.Contains(text, `pv\n1`) {
		t.Errorf("%v, %v:\n%s", truncated, err, text)
	}
	for _, line := range lines {
		if strings.Count(line, "\n") > 0 {
			t.Errorf("a name has begun a line: %q", line)
		}
	}

	for i := range 3000 {
		r.mkdir("pods", fmt.Sprint("many-", i))
	}
	report, err := kubeletroot.Examine(t.Context(), kubeletroot.Config{RootDir: r.dir, Mounts: r.mounts, MaxEntries: 500})
	if err != nil || !report.Truncated || len(report.Pods) > 500 {
		t.Errorf("%d pods, truncated %v: %v", len(report.Pods), report.Truncated, err)
	}
	count := 0
	if truncated, err := kubeletroot.List(r.dir, 500, func(string) { count++ }); err != nil || !truncated || count > 500 {
		t.Errorf("%d lines, truncated %v: %v", count, truncated, err)
	}
}

// What vanishes while it is read is no fault.
func TestARootThatChanges(t *testing.T) {
	r := newRoot(t)
	stop, changed := make(chan struct{}), make(chan error, 1)
	go func() {
		var err error
		for i := 0; err == nil; i++ {
			select {
			case <-stop:
				changed <- nil
				return
			default:
			}
			pod := filepath.Join(r.dir, "pods", fmt.Sprint("uid-", i%7))
			volume := filepath.Join(pod, "volumes", "kubernetes.io~csi", "pv")
			err = errors.Join(os.MkdirAll(filepath.Join(volume, "mount"), 0o755), os.WriteFile(filepath.Join(volume, "vol_data.json"), []byte(`{"driverName":"d","volumeHandle":"h"}`), 0o600), os.RemoveAll(pod))
		}
		changed <- err
	}()
	for range 300 {
		if _, err := kubeletroot.Examine(t.Context(), kubeletroot.Config{RootDir: r.dir, Mounts: r.mounts}); err != nil {
			t.Error(err)
		}
		if _, err := kubeletroot.List(r.dir, 0, func(string) {}); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	testtool.Must(t, <-changed)
}

// The listing has no contents of volumes.
func TestListingHasNoContents(t *testing.T) {
	r := newRoot(t)
	r.file("hunter2", "pods", "u", "volumes", "kubernetes.io~configmap", "cm", "..data", "inside")
	r.file("hunter2", "pods", "u", "volumes", "kubernetes.io~empty-dir", "cache", "inside")
	r.file("hunter2", "pods", "u", "volumes", "kubernetes.io~csi", "pv", "mount", "inside")
	r.file("{}", "pods", "u", "volumes", "kubernetes.io~csi", "pv", "vol_data.json")
	r.file("hunter2", "pods", "u", "containers", "c", "inside")
	r.file("", "pods", "u", "plugins", "kubernetes.io~empty-dir", "cache", "ready")
	r.file("hunter2", "pods", "u", "volume-subpaths", "pv", "c", "0", "inside")
	r.file("hunter2", append(r.device("d", "h"), "globalmount", "inside")...)
	r.file("hunter2", "plugins", "vendor.example.com", "a", "b", "c", "inside")
	var lines []string
	_, err := kubeletroot.List(r.dir, 0, func(line string) { lines = append(lines, line) })
	testtool.Must(t, err)
	text := strings.Join(lines, "\n")
	for _, want := range []string{"pods/u/volumes/kubernetes.io~configmap/cm", "kubernetes.io~csi/pv/vol_data.json", "kubernetes.io~csi/pv/mount", "kubernetes.io~empty-dir/cache/ready", "globalmount", "d0755", "-0644"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not listed:\n%s", want, text)
		}
	}
	if strings.Contains(text, "inside") || strings.Contains(text, "hunter2") {
		t.Errorf("contents are listed:\n%s", text)
	}
}

func TestKubelet(t *testing.T) {
	proc := t.TempDir()
	testtool.WriteFile(t, "bash\n", testtool.MkdirAll(t, proc, "7"), "comm")
	if _, runs := kubeletroot.Kubelet(proc); runs {
		t.Error("bash was taken for a kubelet")
	}
	testtool.WriteFile(t, "kubelet\n", testtool.MkdirAll(t, proc, "4711"), "comm")
	if pid, runs := kubeletroot.Kubelet(proc); !runs || pid != 4711 {
		t.Errorf("%d, %v", pid, runs)
	}
}

func TestReadPods(t *testing.T) {
	known, err := kubeletroot.ReadPods(strings.NewReader(`
apiVersion: v1
kind: List
items:
- {kind: Pod, metadata: {uid: a}, spec: {containers: []}}
- {kind: Pod, metadata: {uid: b, annotations: {kubernetes.io/config.hash: static}}}
- {kind: Service, metadata: {uid: c}}
`))
	if err != nil || !known["a"] || !known["b"] || !known["static"] || known["c"] {
		t.Errorf("%v, %v", known, err)
	}
	if one, err := kubeletroot.ReadPods(strings.NewReader(`{"kind":"Pod","metadata":{"uid":"x"}}`)); err != nil || !one["x"] {
		t.Errorf("%v, %v", one, err)
	}
	for _, text := range []string{"", "hunter2", "{", `{"kind":"Secret","data":{"p":"hunter2"}}`, `{"kind":"List","items":"hunter2"}`} {
		if _, err := kubeletroot.ReadPods(strings.NewReader(text)); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
