// Package lio gives tests in a virtual machine (package vmtest) disks of the kernel's SCSI
// target: for an initiator by a network, or at once by the target's own loopback.
//
// Like every package below util, it carries no promise of compatibility.
package lio

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// Dir is where the kernel's targets are configured.
const Dir = "/sys/kernel/config/target"

// Load loads the kernel's target and its disks, and more modules.
func Load(t testing.TB, modules ...string) {
	t.Helper()
	for _, module := range append([]string{"configfs", "target_core_mod", "target_core_iblock", "sd_mod"}, modules...) {
		if out, err := exec.CommandContext(t.Context(), "modprobe", module).CombinedOutput(); err != nil {
			t.Fatalf("modprobe %s: %v: %s", module, err, out)
		}
	}
	if _, err := os.Stat(Dir); err != nil {
		testtool.Must(t, unix.Mount("none", filepath.Dir(Dir), "configfs", 0, ""))
	}
}

// Disk is a disk of the target, backed by a loop device, until the test's cleanup. Resize makes
// it larger; an initiator sees that once it asks again.
type Disk struct {
	*loopdev.Device
	// Dir is the disk's directory, to which a LUN links.
	Dir string
}

// NewDisk returns a blank disk of size bytes. The name is that below [Dir], and the serial
// number's first 25 hexadecimal digits make its WWID.
func NewDisk(t testing.TB, name, serial string, size int64) *Disk {
	t.Helper()
	d := &Disk{loopdev.New(t, size), filepath.Join(Dir, "core/iblock_0", name)}
	testtool.Must(t, os.MkdirAll(d.Dir, 0o755))
	t.Cleanup(func() { testtool.Must(t, os.Remove(d.Dir)) })
	Set(t, d.Dir, "control", "udev_path="+d.Path)
	Set(t, d.Dir, "enable", "1")
	Set(t, d.Dir, "wwn/vpd_unit_serial", serial)
	return d
}

// Link shows a disk as a LUN of a portal group, until the test's cleanup at the latest.
func Link(t testing.TB, group string, lun int, d *Disk) {
	t.Helper()
	at := filepath.Join(group, "lun/lun_"+strconv.Itoa(lun))
	testtool.Must(t, os.Mkdir(at, 0o755))
	testtool.Must(t, os.Symlink(d.Dir, filepath.Join(at, "disk")))
	t.Cleanup(func() { Unlink(t, group, lun) })
}

// Unlink takes a LUN away. It succeeds if there is none.
func Unlink(t testing.TB, group string, lun int) {
	t.Helper()
	at := filepath.Join(group, "lun/lun_"+strconv.Itoa(lun))
	if _, err := os.Stat(at); err != nil {
		return
	}
	_ = os.Remove(filepath.Join(at, "disk")) // a test may have done so
	testtool.Must(t, os.Remove(at))
}

// Set writes an attribute of the kernel's.
func Set(t testing.TB, dir, attribute, value string) {
	t.Helper()
	testtool.Must(t, os.WriteFile(filepath.Join(dir, attribute), []byte(value), 0))
}

// Loopback shows disks to this machine without a network (tcm_loop), until the test's cleanup.
type Loopback struct {
	t     testing.TB
	group string
}

// NewLoopback returns a loopback without disks. The module is tcm_loop.
func NewLoopback(t testing.TB) *Loopback {
	t.Helper()
	Load(t, "tcm_loop")
	l := &Loopback{t, filepath.Join(Dir, "loopback/naa.6001405000000001/tpgt_1")}
	testtool.Must(t, os.MkdirAll(l.group, 0o755))
	t.Cleanup(func() {
		Set(t, l.group, "nexus", "NULL")
		for dir := l.group; dir != Dir; dir = filepath.Dir(dir) {
			testtool.Must(t, os.Remove(dir))
		}
	})
	Set(t, l.group, "nexus", "naa.6001405000000002")
	return l
}

// Attach shows a disk as a LUN, and returns its device's path once that is there.
func (l *Loopback) Attach(lun int, d *Disk) (device string) {
	l.t.Helper()
	before := l.devices()
	Link(l.t, l.group, lun, d)
	tick := time.NewTicker(5 * time.Millisecond) // the kernel tells of nothing
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-tick.C {
		for device := range l.devices() {
			if before[device] {
				continue
			}
			if f, err := os.Open(device); err == nil { // the kernel has asked the disk for its size
				testtool.Must(l.t, f.Close())
				return device
			}
		}
	}
	l.t.Fatalf("LUN %d did not appear within a minute", lun)
	return ""
}

// Detach takes a LUN away, whoever uses its device.
func (l *Loopback) Detach(lun int) {
	l.t.Helper()
	Unlink(l.t, l.group, lun)
}

// Rescan has the kernel ask for the size of a device's disk.
func Rescan(t testing.TB, device string) {
	t.Helper()
	Set(t, filepath.Join("/sys/block", filepath.Base(device), "device"), "rescan", "1")
}

// devices are the SCSI disks of the machine.
func (l *Loopback) devices() map[string]bool {
	l.t.Helper()
	paths, err := filepath.Glob("/dev/sd*")
	testtool.Must(l.t, err)
	all := make(map[string]bool)
	for _, path := range paths {
		all[path] = true
	}
	return all
}
