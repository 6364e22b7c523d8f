package volumemanager_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// The devices' part of the model: the disk "net" must be attached to the node
// before it is mounted, by a controller that detaches it only while the node's
// status does not list it; the disk "local" is just there.
const (
	netDisk   = "net"
	localDisk = "local"
)

const (
	holdReports    action = "the node's status is not updated"
	loseReport     action = "the node's status is updated, and the answer is lost"
	holdController action = "nothing is attached or detached"
	loseDisk       action = "the disk is reported detached, in use or not"

	failDevices    action = "devices fail to mount before it has an effect"
	spoilDevices   action = "devices fail to mount after it has an effect"
	failUndevices  action = "devices fail to unmount"
	hangDevices    action = "devices hang"
	refuseDevices  action = "the plugin refuses devices"
	loseContainers action = "nobody knows which containers run"
)

func deviceActions() []action {
	return []action{holdReports, loseReport, holdController, loseDisk,
		failDevices, spoilDevices, failUndevices, hangDevices, refuseDevices, loseContainers}
}

// modelDisks is a plugin with disks that are attached and others that are not.
type modelDisks struct{ attachableDisk }

func (modelDisks) CanAttach(_ context.Context, s *volume.Spec) (bool, error) {
	return pdName(s) == netDisk, nil
}

// complaints are what the plugin has to say, for the history to fail and not
// the test at once.
type complaints struct {
	testing.TB
	mu   sync.Mutex
	list []string
}

func (c *complaints) Errorf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, fmt.Sprintf(format, args...))
}

func (c *complaints) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.list) == 0 {
		return nil
	}
	return errors.New(strings.Join(c.list, "\n"))
}

// controller is the cluster's side of the node's status: it attaches what is in
// use and detaches what is not, after every step unless it is held.
type controller struct {
	silent, held bool // the node's status is not updated; the controller does nothing

	mu       sync.Mutex
	reported bool // the node's status lists the disk in use
	attached bool
}

func (c *controller) state() (reported, attached bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reported, c.attached
}

func (m *model) withModelDisks() {
	m.complaints = &complaints{TB: m.t}
	m.disk = &disk{t: m.complaints}
	m.plugins = besides(modelDisks{attachableDisk{m.disk}})
	m.disk.calls.Inject(fault.Fault[diskCall]{Match: func(c diskCall) bool {
		if c.Op != "MountDevice" || c.Whose != netDisk {
			return false
		}
		if reported, attached := m.controller.state(); !reported || !attached {
			m.complaints.Errorf("%s is mounted before it is reported in use and attached", c.Whose)
		}
		return false
	}})
}

// doDevices does a step about devices, and reports whether it was one.
func (m *model) doDevices(s step) bool {
	switch s.Do {
	case holdReports:
		m.controller.silent = true
		m.faults = append(m.faults, func() { m.controller.silent = false })
	case loseReport:
		m.sendReport()
	case holdController:
		m.controller.held = true
		m.faults = append(m.faults, func() { m.controller.held = false })
	case loseDisk:
		m.setAttached(false)
	case loseContainers:
		m.role.lose(true)
		m.faults = append(m.faults, func() { m.role.lose(false) })
	case refuseDevices:
		m.faults = append(m.faults, m.disk.calls.Inject(fault.Fault[diskCall]{
			Match: func(c diskCall) bool { return c.Op == "MountDevice" || c.Op == "WaitForAttach" },
			Err:   volume.NothingDone(errors.New("refused")),
		}))
	case failDevices, spoilDevices, failUndevices, hangDevices:
		m.faultOfDevices(s.Do)
	default:
		return false
	}
	return true
}

func (m *model) faultOfDevices(do action) {
	isDevice := func(c fakemount.Call) bool { return strings.HasPrefix(c.Target, filepath.Join(m.root, "plugins")+"/") }
	f := fakemount.Fault{Err: errors.New("injected")}
	f.Match = func(c fakemount.Call) bool { return isMount(c) && isDevice(c) }
	switch do {
	case spoilDevices:
		f.After = true
	case failUndevices:
		f.Match = func(c fakemount.Call) bool { return isUnmount(c) && isDevice(c) }
	case hangDevices:
		release := make(chan struct{})
		f = fakemount.Fault{Match: isDevice, Release: release}
		m.faults = append(m.faults, m.fake.Inject(f), sync.OnceFunc(func() { close(release) }))
		return
	}
	m.faults = append(m.faults, m.fake.Inject(f))
}

// sendReport puts what is in use into the node's status.
func (m *model) sendReport() []v1.UniqueVolumeName {
	names := m.manager.VolumesInUse()
	m.controller.mu.Lock()
	defer m.controller.mu.Unlock()
	m.controller.reported = slices.Contains(names, unique(netDisk))
	return names
}

func (m *model) setAttached(attached bool) {
	m.controller.mu.Lock()
	m.controller.attached = attached
	m.controller.mu.Unlock()
	m.tellAttached()
}

func (m *model) tellAttached() {
	var list []v1.AttachedVolume
	m.controller.mu.Lock()
	if m.controller.attached {
		list = append(list, v1.AttachedVolume{Name: unique(netDisk), DevicePath: "/dev/" + netDisk})
	}
	m.controller.mu.Unlock()
	m.manager.SetVolumesAttached(list)
}

// cluster does what the node's agent and the controller do after every step.
func (m *model) cluster() {
	if !m.controller.silent {
		m.manager.ReportedInUse(m.sendReport())
		synctest.Wait()
	}
	reported, attached := m.controller.state()
	if m.controller.held || reported == attached {
		return
	}
	if attached && slices.Contains(m.mountedDevices(), netDisk) {
		m.complaints.Errorf("%s is detached while it is mounted, since it was not reported in use", netDisk)
	}
	m.setAttached(reported)
	synctest.Wait()
}

// checkDevices checks what holds of devices at any time.
func (m *model) checkDevices(targets []string) error {
	if err := m.complaints.err(); err != nil {
		return err
	}
	mounted := m.mountedDevices()
	for _, target := range targets {
		if name, ok := diskOf(target); ok && !slices.Contains(mounted, name) {
			return fmt.Errorf("%s is mounted without its device; there are %v", target, mounted)
		}
	}
	if slices.Contains(mounted, netDisk) && !slices.Contains(m.manager.VolumesInUse(), unique(netDisk)) {
		return fmt.Errorf("%s is mounted and not in use", netDisk)
	}
	return nil
}

// diskOf is the disk that a pod's mount is of.
func diskOf(target string) (string, bool) {
	if !strings.Contains(target, "/example.com~disk/") {
		return "", false
	}
	return strings.CutPrefix(filepath.Base(target), "v-")
}

// checkDevicesAtEnd checks that no device is mounted, nor has left a directory,
// that no pod has a volume of.
func (m *model) checkDevicesAtEnd() error {
	var used []string
	for _, key := range m.records() {
		if name, ok := diskOf("/" + key); ok {
			used = append(used, name)
		}
	}
	left, _ := filepath.Glob(filepath.Join(m.root, "plugins", diskPlugin, "mounts", "*"))
	for _, place := range append(left, m.mountedDevices()...) {
		if !slices.Contains(used, filepath.Base(place)) {
			return fmt.Errorf("%s is left, and only those of %v are used", place, used)
		}
	}
	return nil
}

// checkEvents checks that pods whose set-up has failed were told so.
func (m *model) checkEvents(rows []volumemanager.VolumeStatus) error {
	for _, row := range rows {
		_, waits := errors.AsType[*volumemanager.AttachmentError](row.Err)
		if row.Err == nil || waits || row.Failures == 0 || !row.Wanted || row.State != volumemanager.StateFailed {
			continue
		}
		told := fmt.Sprintf("%s Warning FailedMount ", row.Pod.Name)
		if !slices.ContainsFunc(m.events.all(), func(e string) bool { return strings.HasPrefix(e, told) && strings.Contains(e, row.Volume) }) {
			return fmt.Errorf("volume %s of %s has failed (%v), and no event says so", row.Volume, row.Pod, row.Err)
		}
	}
	return nil
}
