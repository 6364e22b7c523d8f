package openiscsi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/lazyregexp"
	"github.com/podvol/podvol/volume"
)

// session is an open session with a portal, in sysfs.
type session struct {
	id string // iscsiadm's number
	// device is the directory with the targets, resolved.
	device string
	host   string // such as "3"
	target string // its number on the host
	// portals are the addresses of its connection.
	portals []Portal
}

func (i *Initiator) class(name string) string { return filepath.Join(i.config.Sys, "class", name) }

func (i *Initiator) block(disk string, path ...string) string {
	return filepath.Join(append([]string{i.config.Sys, "block", disk}, path...)...)
}

var hostName = lazyregexp.New(`/host(\d+)/`)

// sessions returns the sessions with a LUN's target through its portals and its interface,
// in the order of the portals.
func (i *Initiator) sessions(ctx context.Context, lun LUN) (found []session, err error) {
	var all []session
	names, err := entries(i.class("iscsi_session"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		s, isOf, err := i.session(name, lun)
		if err != nil {
			return nil, err
		}
		if isOf {
			all = append(all, s)
		}
	}
	for _, p := range lun.Portals {
		names, err := i.namesOf(ctx, p, all)
		if err != nil {
			return nil, err
		}
		for _, s := range all {
			if s.isAt(names, p.Port) && !hasSession(found, s.id) {
				s.portals = append([]Portal{p}, s.portals...)
				found = append(found, s)
			}
		}
	}
	return found, nil
}

// namesOf returns what a session with a portal may have for its host: the portal's, or else what
// that resolves to.
func (i *Initiator) namesOf(ctx context.Context, p Portal, sessions []session) ([]string, error) {
	names := []string{p.Host}
	named := slices.ContainsFunc(sessions, func(s session) bool { return s.isAt(names, p.Port) })
	if named || len(sessions) == 0 || net.ParseIP(p.Host) != nil {
		return names, nil
	}
	resolved, err := i.lookup(ctx, p.Host)
	if failed, ok := errors.AsType[*net.DNSError](err); ok && failed.IsNotFound {
		return names, nil // no session of this name was opened by an address
	}
	if err != nil {
		return nil, fmt.Errorf("whether a session is with portal %s is not known: %w", p, err)
	}
	return append(names, resolved...), nil
}

// session reads a session from sysfs. isOf is false if it is another target's or interface's,
// or was closed just now.
func (i *Initiator) session(name string, lun LUN) (s session, isOf bool, err error) {
	dir := filepath.Join(i.class("iscsi_session"), name)
	target, err := attribute(dir, "targetname")
	face, ferr := attribute(dir, "ifacename")
	if err = errors.Join(err, ferr); err != nil || target != lun.IQN || face != lun.Interface.Name {
		return s, false, err
	}
	device, err := filepath.EvalSymlinks(filepath.Join(dir, "device"))
	if errors.Is(err, fs.ErrNotExist) {
		return s, false, nil
	}
	host := hostName().FindStringSubmatch(device)
	if err != nil || host == nil {
		return s, false, errors.Join(err, fmt.Errorf("%s: the host of the session is not known", dir))
	}
	number, err := attribute(dir, "target_id")
	if err != nil {
		return s, false, err
	}
	s = session{id: strings.TrimPrefix(name, "session"), device: device, host: host[1], target: cmp.Or(number, "0")}
	s.portals, err = i.connections(s.id)
	return s, err == nil, err
}

// connections returns the addresses of a session: the one that was asked for, and the one
// that the target redirected to.
func (i *Initiator) connections(id string) (portals []Portal, err error) {
	names, err := entries(i.class("iscsi_connection"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, "connection"+id+":") {
			continue
		}
		for _, prefix := range []string{"persistent_", ""} {
			dir := filepath.Join(i.class("iscsi_connection"), name)
			port, err := attribute(dir, prefix+"port")
			host, herr := attribute(dir, prefix+"address")
			if err := errors.Join(err, herr); err != nil {
				return nil, err
			}
			if number, err := strconv.Atoi(port); err == nil && host != "" {
				portals = append(portals, Portal{Host: host, Port: number})
			}
		}
	}
	return portals, nil
}

func (s session) isAt(names []string, port int) bool {
	return slices.ContainsFunc(s.portals, func(p Portal) bool {
		return p.Port == port && slices.ContainsFunc(names, func(name string) bool { return isSameHost(name, p.Host) })
	})
}

func isSameHost(a, b string) bool {
	ip := net.ParseIP(a)
	return a == b || ip != nil && ip.Equal(net.ParseIP(b))
}

func hasSession(list []session, id string) bool {
	return slices.ContainsFunc(list, func(s session) bool { return s.id == id })
}

// hasPortal reports whether one of the sessions, which [Initiator.sessions] returned, is with
// a portal.
func hasPortal(list []session, p Portal) bool {
	return slices.ContainsFunc(list, func(s session) bool { return slices.Contains(s.portals, p) })
}

// portal is the one of a LUN that the session is with.
func (s session) portal(lun LUN) Portal {
	for _, p := range s.portals {
		if slices.Contains(lun.Portals, p) {
			return p
		}
	}
	return lun.Portals[0]
}

// disks are the kernel's names of all disks of a session; with numbers, of these LUNs only.
func (s session) disks(numbers ...int) (names []string, err error) {
	targets, err := entries(s.device)
	if err != nil {
		return nil, err
	}
	for _, target := range targets {
		if !strings.HasPrefix(target, "target") {
			continue
		}
		units, err := entries(filepath.Join(s.device, target))
		if err != nil {
			return nil, err
		}
		for _, unit := range units {
			address := strings.Split(unit, ":")
			number, err := strconv.Atoi(address[len(address)-1])
			if err != nil || len(address) != 4 || len(numbers) > 0 && !slices.Contains(numbers, number) {
				continue
			}
			disks, err := entries(filepath.Join(s.device, target, unit, "block"))
			if err != nil {
				return nil, err
			}
			names = append(names, disks...)
		}
	}
	return names, nil
}

// scan has the kernel look for a LUN of a session. A removal that nobody waits for any more
// ends before: it would take the disk away from its next user.
func (i *Initiator) scan(ctx context.Context, s session, number int) error {
	disks, err := s.disks(number)
	if err != nil {
		return err
	}
	for _, disk := range disks {
		if err := i.calls.Do(ctx, disk, func() error { return nil }); err != nil {
			return fmt.Errorf("disk %s is still being removed: %w", disk, err)
		}
	}
	if disks, err = s.disks(number); err != nil || len(disks) > 0 {
		return err
	}
	path := filepath.Join(i.class("scsi_host"), "host"+s.host, "scan")
	return i.write(ctx, "host"+s.host, path, fmt.Sprintf("0 %s %d", s.target, number))
}

// write writes to a file of the kernel, which may take as long as the target.
func (i *Initiator) write(ctx context.Context, key, path, value string) error {
	return i.calls.Do(ctx, key, func() error { return i.put(path, value) })
}

func put(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// device is the disk that the sessions show under a LUN's number.
func (i *Initiator) device(lun LUN, sessions []session) (Device, error) {
	var d Device
	for _, s := range sessions {
		disks, err := s.disks(lun.Number)
		if err != nil {
			return Device{}, err
		}
		for _, disk := range disks {
			id, err := i.id(disk)
			if err != nil {
				return Device{}, err
			}
			if len(d.Disks) > 0 && (id != d.ID || id == "") { // nothing says that two without one are the same
				return Device{}, &volume.Failure{Cause: ErrNotOneDisk, Subject: lun.IQN,
					What: fmt.Sprintf("LUN %d of target %s is disk %q (%s) by one portal, and disk %q (%s) by another", lun.Number, lun.IQN, d.ID, d.Disks[0], id, disk),
					Next: "name only portals of one target in the volume"}
			}
			d.ID, d.Disks = id, append(d.Disks, disk)
		}
	}
	if len(d.Disks) == 0 {
		return Device{}, noDisk(lun, "none of its portals shows it")
	}
	mapped, err := i.multipath(d.Disks)
	if err != nil {
		return Device{}, err
	}
	name := cmp.Or(mapped, d.Disks[0])
	size, err := attribute(i.block(name), "size")
	if err != nil {
		return Device{}, err
	}
	sectors, err := strconv.ParseInt(size, 10, 64)
	if err != nil || sectors == 0 {
		return Device{}, noDisk(lun, "the kernel does not know its size yet")
	}
	d.Size, d.Path = sectors*512, filepath.Join(i.config.Dev, name)
	return d, i.checkNode(lun, d.Path, name)
}

func noDisk(lun LUN, why string) error {
	return &volume.Failure{Cause: ErrNoDisk, Subject: lun.IQN, What: fmt.Sprintf("there is no LUN %d of target %s: %s", lun.Number, lun.IQN, why),
		Next: "check lun, and whether the target lets this node have it"}
}

// checkNode makes sure that the file of a device is there, and is that device's. One that may
// still come, or be replaced, is no disk yet.
func (i *Initiator) checkNode(lun LUN, path, name string) error {
	is, err := i.number(path)
	if errors.Is(err, fs.ErrNotExist) {
		return noDisk(lun, err.Error())
	}
	if err != nil {
		return err
	}
	want, err := attribute(i.block(name), "dev")
	if err == nil && is != want {
		err = noDisk(lun, fmt.Sprintf("%s is the device %s, not %s", path, is, want))
	}
	return err
}

func number(path string) (string, error) {
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Stat(path, &st) }); err != nil {
		return "", &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return "", &fs.PathError{Op: "stat", Path: path, Err: unix.ENOTBLK}
	}
	return fmt.Sprintf("%d:%d", unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev))), nil
}

// id is what the disk calls itself: its designator, which the kernel reads from the page 0x83
// of its vital product data, or else the serial number of the page 0x80; empty: it has neither.
func (i *Initiator) id(disk string) (string, error) {
	id, err := attribute(i.block(disk), "device", "wwid")
	if err != nil || id != "" {
		return strings.Join(strings.Fields(id), "_"), err
	}
	page, err := os.ReadFile(i.block(disk, "device", "vpd_pg80"))
	const header = 4
	if err != nil || len(page) <= header {
		return "", present(err)
	}
	return "serial." + strings.Join(strings.Fields(string(page[header:])), "_"), nil
}

// present drops the errors of sysfs that say that something has no such value, or is gone: the
// absence of a designator is ENXIO or EINVAL, and of a connection ENOTCONN.
func present(err error) error {
	for _, absent := range []error{unix.ENOENT, unix.ENODEV, unix.ENXIO, unix.EINVAL, unix.ENOTCONN} {
		if errors.Is(err, absent) {
			return nil
		}
	}
	return err
}

// attribute returns a line of sysfs; empty: there is none.
func attribute(path ...string) (string, error) {
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		return "", present(err)
	}
	return strings.TrimSpace(string(b)), nil
}

// entries returns the names in a directory; none: it does not exist.
func entries(dir string) (names []string, err error) {
	all, err := os.ReadDir(dir)
	if err != nil {
		if errors.Is(err, unix.ENODEV) || errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names, nil
}
