package flexvolume_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/flexvolume"
	"github.com/podvol/podvol/volume/plugins/flexvolume/internal/driver"
)

// bench is a node whose drivers are programs.
type bench struct {
	*testing.T
	*fakehost.Host
	drivers string
	plugin  *flexvolume.Plugin
}

func newBench(t *testing.T, drivers string) *bench {
	b := &bench{T: t, Host: fakehost.NewOnKernel(t, host.New(host.Config{})), drivers: drivers}
	b.restart()
	return b
}

// restart gives the node a new plugin.
func (b *bench) restart() {
	b.Helper()
	b.plugin = flexvolume.NewWith(flexvolume.Config{Dir: b.drivers}, driver.Run, nil)
	b.must(b.plugin.Init(b.Host))
}

func (b *bench) must(errs ...error) {
	b.Helper()
	if err := errors.Join(errs...); err != nil {
		b.Fatal(err)
	}
}

// pv is a PersistentVolume of a driver.
func pv(name, driver string, options map[string]string) *volume.Spec {
	pv := &v1.PersistentVolume{}
	pv.Name = name
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("32Mi")}
	pv.Spec.FlexVolume = &v1.FlexPersistentVolumeSource{Driver: driver, Options: options}
	return volume.NewSpecFromPersistentVolume(pv, false)
}

func (b *bench) devicePath(s *volume.Spec) string {
	b.Helper()
	m, err := b.plugin.NewDeviceMounter()
	b.must(err)
	path, err := m.GetDeviceMountPath(s)
	b.must(err)
	return path
}

// setUp mounts the device and sets the volume up, and returns where it is.
func (b *bench) setUp(s *volume.Spec, pod string) (string, error) {
	b.Helper()
	d, err := b.plugin.NewDeviceMounter()
	b.must(err)
	if err := d.MountDevice(b.Context(), s, "", b.devicePath(s), volume.DeviceMounterArgs{}); err != nil {
		return "", err
	}
	m, err := b.plugin.NewMounter(s, fakehost.Pod(pod))
	b.must(err)
	return m.GetPath(), m.SetUp(b.Context(), volume.MounterArgs{})
}

func (b *bench) mustSetUp(s *volume.Spec, pod string) string {
	b.Helper()
	path, err := b.setUp(s, pod)
	b.must(err)
	return path
}

func (b *bench) tearDown(s *volume.Spec, pods ...string) {
	b.Helper()
	for _, pod := range pods {
		u, err := b.plugin.NewUnmounter(s.Name(), fakehost.Pod(pod).UID)
		b.must(err)
		b.must(u.TearDown(b.Context()))
	}
	d, err := b.plugin.NewDeviceUnmounter()
	b.must(err, d.UnmountDevice(b.Context(), b.devicePath(s)))
}

func (b *bench) wantFile(path, content string) {
	b.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != content {
		b.Errorf("%s has %q, %v; want %q", path, got, err, content)
	}
}

// attached are the volumes that a driver has attached.
func (b *bench) attached(name string) (names []string) {
	b.Helper()
	all, err := os.ReadDir(filepath.Join(filepath.Dir(driver.Program(b.drivers, name)), "attached"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b.Fatal(err)
	}
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}

// bare is the host without what fakehost adds, so that roles are few.
func (b *bench) bare(attachments volume.AttachmentGetter) {
	b.must(b.plugin.Init(&volume.Host{RootDir: b.RootDir, NodeName: fakehost.NodeName, Mounter: b.GetMounter(), Attachments: attachments}))
}

// A driver that has vanished leaves nothing behind: the node unmounts. The record has told after
// a restart whose volume it is.
func TestKernelDriverVanishes(t *testing.T) {
	testtool.Need(t, "mount")
	nstest.Run(t, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		install(t, b.drivers, "example.com/tmpfs", "example.com/disk")
		data := t.TempDir()
		one, disk := pv("one", "example.com/tmpfs", nil), pv("disk", "example.com/disk", map[string]string{"dir": data})
		at := b.mustSetUp(one, "a")
		b.wantFile(filepath.Join(at, "file"), "by a\n")
		b.mustSetUp(disk, "b")
		if got := b.attached("example.com/disk"); len(got) != 1 || got[0] != "disk" {
			t.Errorf("attached: %v", got)
		}
		b.restart()
		if again := b.mustSetUp(one, "a"); again != at || len(b.Mounts(t)) != 3 {
			t.Errorf("set up again at %s: %v", again, b.Mounts(t))
		}
		rebuilt, err := b.plugin.ConstructVolumeSpec(t.Context(), "one", at)
		if err != nil || rebuilt.Complete || rebuilt.Spec.PersistentVolume.Spec.FlexVolume.Driver != "example.com/tmpfs" {
			t.Errorf("rebuilt: %+v, %v", rebuilt.Spec, err)
		}
		b.must(os.Rename(b.drivers, b.drivers+"-away"))
		b.restart()
		b.tearDown(one, "a")
		u, err := b.plugin.NewUnmounter("disk", fakehost.Pod("b").UID)
		b.must(err, u.TearDown(t.Context()))
		d, err := b.plugin.NewDeviceUnmounter()
		b.must(err)
		if err := d.UnmountDevice(t.Context(), b.devicePath(disk)); !errors.Is(err, flexvolume.ErrNotInstalled) { // nobody can detach
			t.Errorf("UnmountDevice of what this node has attached: %v", err)
		}
		b.AssertNothingMounted(t)
		b.must(os.Rename(b.drivers+"-away", b.drivers))
		b.tearDown(disk)
		if got := b.attached("example.com/disk"); len(got) != 0 {
			t.Errorf("still attached: %v", got)
		}
		b.AssertTornDown(t)
	})
}

// Without its record a volume is unmounted by the node.
func TestKernelWithoutARecord(t *testing.T) {
	testtool.Need(t, "mount")
	nstest.RunAs(t, []nstest.Mode{nstest.User}, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		install(t, b.drivers, "example.com/tmpfs")
		s := pv("one", "example.com/tmpfs", nil)
		at := b.mustSetUp(s, "a")
		b.must(os.RemoveAll(filepath.Join(b.GetPodPluginDir(fakehost.Pod("a").UID, flexvolume.PluginName), "one")))
		b.restart()
		if rebuilt, err := b.plugin.ConstructVolumeSpec(t.Context(), "one", at); err != nil || rebuilt.Complete {
			t.Errorf("rebuilt: %+v, %v", rebuilt.Spec, err)
		}
		if _, err := b.setUp(s, "a"); err == nil || volume.IsUncertain(err) || !strings.Contains(err.Error(), "tear the volume down") {
			t.Errorf("over a mount that nobody knows: %v", err)
		}
		b.tearDown(s, "a")
		b.AssertTornDown(t)
	})
}

// A driver that says that it has mounted, and has not, is not believed: pods would write to the
// node's own disk. A driver that fails says why.
func TestKernelDriversThatLie(t *testing.T) {
	testtool.Need(t, "mount")
	nstest.RunAs(t, []nstest.Mode{nstest.User}, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		for name, script := range map[string]string{
			"lies":    `case $1 in init) echo '{"status":"Success","capabilities":{"attach":false}}';; *) echo '{"status":"Success"}';; esac`,
			"fails":   `case $1 in init) echo '{"status":"Success","capabilities":{"attach":false}}';; *) echo '{"status":"Failure","message":"no server"}'; exit 1;; esac`,
			"stacks":  `case $1 in init) echo '{"status":"Success","capabilities":{"attach":false}}';; mount) mount -t tmpfs a $2; mount -t tmpfs b $2; echo '{"status":"Success"}';; *) echo '{"status":"Success"}';; esac`,
			"nothing": `case $1 in init) echo '{"status":"Success","capabilities":{"attach":false}}';; *) echo '{"status":"Not supported"}';; esac`,
		} {
			installProgram(t, b.drivers, "example.com/"+name, "#!/bin/sh\n"+script)
		}
		for name, says := range map[string]string{"lies": "nothing is mounted at", "fails": "driver example.com/fails failed to mount: no server", "nothing": "does not support mount"} {
			s := pv(name, "example.com/"+name, nil)
			_, err := b.setUp(s, "a")
			if !errors.Is(err, flexvolume.ErrDriver) || !volume.IsUncertain(err) || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v", name, err)
			}
			b.tearDown(s, "a")
			b.AssertTornDown(t)
		}
		s := pv("stacks", "example.com/stacks", nil)
		b.mustSetUp(s, "a")
		b.tearDown(s, "a") // whose driver says that it has unmounted
		b.AssertTornDown(t)
	})
}

// attachments is the role of a host whose volumes others attach.
type attachments struct{ volume.AttachmentGetter }

// Where the host knows attachments, others attach and detach, and the node mounts the device that
// they have found.
func TestKernelOthersAttach(t *testing.T) {
	testtool.Need(t, "mount")
	nstest.RunAs(t, []nstest.Mode{nstest.User}, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		b.bare(attachments{})
		s, plain := pv("disk", "example.com/disk", map[string]string{"dir": t.TempDir()}), pv("plain", "example.com/plain", nil)
		if _, err := b.plugin.CanAttach(t.Context(), s); !errors.Is(err, flexvolume.ErrNotInstalled) {
			t.Errorf("a missing driver: %v", err)
		}
		install(t, b.drivers, "example.com/disk", "example.com/plain")
		for spec, want := range map[*volume.Spec]bool{s: true, plain: false} {
			if can, err := b.plugin.CanAttach(t.Context(), spec); can != want || err != nil {
				t.Errorf("%s is attached: %v, %v", spec.Name(), can, err)
			}
		}
		a, err := b.plugin.NewAttacher()
		b.must(err)
		isAttached := func(want bool) {
			t.Helper()
			got, err := a.VolumesAreAttached(t.Context(), []*volume.Spec{s, plain}, fakehost.NodeName)
			if err != nil || got[s] != want || !got[plain] {
				t.Errorf("attached: %v, %v; want %v", got, err, want)
			}
		}
		isAttached(false)
		for range 2 {
			attached, err := b.plugin.AttachSpec(t.Context(), s, fakehost.NodeName)
			if err != nil || attached.DevicePath != "/dev/flex/disk" {
				t.Errorf("AttachSpec = %+v, %v", attached, err)
			}
		}
		isAttached(true)
		b.mustSetUp(s, "a")
		if err := b.plugin.DetachSpec(t.Context(), s, fakehost.NodeName); !errors.Is(err, volume.ErrInUse) {
			t.Errorf("detached under a mount: %v", err)
		}
		d, err := b.plugin.NewDeviceUnmounter()
		b.must(err)
		if err := d.UnmountDevice(t.Context(), b.devicePath(s)); !errors.Is(err, volume.ErrInUse) {
			t.Errorf("unmounted under a pod: %v", err)
		}
		b.tearDown(s, "a")
		isAttached(true)
		for range 2 {
			b.must(b.plugin.DetachSpec(t.Context(), s, fakehost.NodeName))
		}
		isAttached(false)
		detacher, err := b.plugin.NewDetacher()
		b.must(err, detacher.Detach(t.Context(), "disk", fakehost.NodeName))
		if err := detacher.Detach(t.Context(), "other", fakehost.NodeName); err == nil || volume.IsUncertain(err) {
			t.Errorf("detached by a name that says nothing: %v", err)
		}
	})
}

// A volume whose driver mounts for each pod is not detached while a pod may have it.
func TestKernelDetachWithoutADevice(t *testing.T) {
	testtool.Need(t, "mount")
	nstest.RunAs(t, []nstest.Mode{nstest.User}, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		b.bare(attachments{})
		installProgram(t, b.drivers, "example.com/perpod", `#!/bin/sh
case $1 in
attach | detach) touch "$0.$1" ;;
mount) mount -t tmpfs own "$2" ;;
unmount) umount "$2" ;;
init) echo '{"status":"Success","capabilities":{"attach":true}}'; exit ;;
*) echo '{"status":"Not supported"}'; exit ;;
esac && echo '{"status":"Success"}'
`)
		s := pv("data", "example.com/perpod", nil)
		if _, err := b.plugin.AttachSpec(t.Context(), s, fakehost.NodeName); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			b.mustSetUp(s, "a")
			b.restart()
			b.bare(attachments{})
		}
		called := driver.Program(b.drivers, "example.com/perpod") + ".detach"
		if err := b.plugin.DetachSpec(t.Context(), s, fakehost.NodeName); !errors.Is(err, volume.ErrInUse) {
			t.Errorf("detached under a pod: %v", err)
		}
		if _, err := os.Stat(called); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the driver was called: %v", err)
		}
		b.tearDown(s, "a")
		b.AssertTornDown(t)
		b.must(b.plugin.DetachSpec(t.Context(), s, fakehost.NodeName))
		if _, err := os.Stat(called); err != nil {
			t.Error(err)
		}
	})
}

// guarded is a driver that mounts a device only with the right password.
const guarded = `#!/bin/sh
ok() { echo '{"status":"Success"}'; exit; }
case $1 in
init) echo '{"status":"Success","capabilities":{"attach":true}}' ;;
mountdevice)
  case $4 in *'"password":"right"'*) mount -t tmpfs own "$2" && echo precious >"$2/file" && ok ;; esac
  echo '{"status":"Failure","message":"wrong password"}' ;;
unmountdevice) umount "$2" && ok ;;
*) echo '{"status":"Not supported"}' ;;
esac
`

// An inline volume that is mounted is not given to a pod that has another password, or wants to
// write where the first only reads, neither by the manager's first step nor by its second.
func TestKernelAnothersInlineVolume(t *testing.T) {
	testtool.Need(t, "mount")
	nstest.RunAs(t, []nstest.Mode{nstest.User}, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		installProgram(t, b.drivers, "example.com/guarded", guarded)
		inline := func(password string, readOnly bool) *volume.Spec {
			return volume.NewSpecFromVolume(&v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{
				Driver: "example.com/guarded", ReadOnly: readOnly, Options: map[string]string{"share": "x", "password": password}}}})
		}
		owner := inline("right", true)
		at := b.mustSetUp(owner, "a")
		if err := os.WriteFile(filepath.Join(at, "other"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("written to a read-only volume: %v", err)
		}
		if text, err := os.ReadFile(filepath.Join(filepath.Dir(b.devicePath(owner)), "flexvolume.json")); err != nil || strings.Contains(string(text), "right") {
			t.Errorf("the record: %s, %v", text, err)
		}
		b.restart()
		for says, other := range map[string]*volume.Spec{"other secret options": inline("wrong", true), "readOnly": inline("right", false)} {
			_, err := b.setUp(other, "b")
			m, bad := b.plugin.NewMounter(other, fakehost.Pod("b"))
			b.must(bad)
			for _, err := range []error{err, m.SetUp(t.Context(), volume.MounterArgs{})} {
				if !errors.Is(err, volume.ErrInUse) || !strings.Contains(err.Error(), says) {
					t.Errorf("%s: %v", says, err)
				}
			}
		}
		b.wantFile(filepath.Join(b.mustSetUp(inline("right", true), "c"), "file"), "precious\n")
		b.tearDown(owner, "a", "b", "c")
		b.AssertTornDown(t)
	})
}

// A driver that only attaches has the node format, mount, bind and grow its device.
func TestKernelDeviceOfADriver(t *testing.T) {
	testtool.Need(t, "mount", "mkfs.ext4")
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		install(t, b.drivers, "example.com/loop")
		disk := loopdev.New(t, 32<<20)
		s := pv("disk", "example.com/loop", map[string]string{"device": disk.Path})
		group := int64(4711)
		at := b.mustSetUp(s, "a")
		m, err := b.plugin.NewMounter(s, fakehost.Pod("b"))
		b.must(err, m.SetUp(t.Context(), volume.MounterArgs{FsGroup: &group}), os.WriteFile(filepath.Join(at, "file"), []byte("data"), 0o600))
		b.wantFile(filepath.Join(m.GetPath(), "file"), "data")
		var st unix.Stat_t
		if b.must(unix.Stat(m.GetPath(), &st)); st.Gid != 4711 {
			t.Errorf("group %d", st.Gid)
		}
		size := func() uint64 {
			var f unix.Statfs_t
			b.must(unix.Statfs(at, &f))
			return f.Blocks * uint64(f.Bsize)
		}
		before := size()
		if metrics, err := m.GetMetrics(t.Context()); err != nil || uint64(metrics.Capacity.Value()) != before {
			t.Errorf("metrics %+v, %v; %d bytes", metrics, err, before)
		}
		disk.Resize(t, 64<<20)
		reached, node, err := b.plugin.ExpandSpec(t.Context(), s, resource.MustParse("64Mi"))
		if err != nil || !node || reached.Value() != 64<<20 {
			t.Errorf("ExpandSpec = %v, %v, %v", reached.String(), node, err)
		}
		done, err := b.plugin.NodeExpand(t.Context(), volume.NodeResizeOptions{VolumeSpec: s, DevicePath: disk.Path, DeviceMountPath: b.devicePath(s), NewSize: reached, OldSize: resource.MustParse("32Mi")})
		refused := errors.Is(err, volume.ErrResizeInUse) // to grow it mounted needs CAP_SYS_RESOURCE
		if !refused && (!done || err != nil || size() < before+before/2) {
			t.Errorf("NodeExpand = %v, %v: %d bytes, %d before", done, err, size(), before)
		}
		b.tearDown(s, "a", "b")
		b.AssertTornDown(t)
		b.wantFile(filepath.Join(b.mustSetUp(s, "a"), "file"), "data")
		b.tearDown(s, "a")
		b.AssertTornDown(t)
		var none types.UID
		if u, err := b.plugin.NewUnmounter("disk", none); err == nil {
			t.Errorf("an unmounter of no pod: %v", u)
		}
	})
}
