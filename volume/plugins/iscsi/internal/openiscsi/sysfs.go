package openiscsi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
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

var hostName = regexp.MustCompile(`/host(\d+)/`)

// sessions returns the sessions with a LUN's target through its portals and its interface,
// in the order of the portals.
func (i *Initiator) sessions(ctx context.Context, lun LUN) (found []session, err error) {
	var all []session
	for _, name := range entries(i.class("iscsi_session")) {
		dir := filepath.Join(i.class("iscsi_session"), name)
		if attribute(dir, "targetname") != lun.IQN || attribute(dir, "ifacename") != lun.Interface.Name {
			continue
		}
		device, err := filepath.EvalSymlinks(filepath.Join(dir, "device"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was closed just now
		}
		host := hostName.FindStringSubmatch(device)
		if err != nil || host == nil {
			return nil, errors.Join(err, fmt.Errorf("%s: the host of the session is not known", dir))
		}
		s := session{id: strings.TrimPrefix(name, "session"), device: device, host: host[1], target: attribute(dir, "target_id")}
		if s.target == "" {
			s.target = "0"
		}
		s.portals = i.connections(s.id)
		all = append(all, s)
	}
	for _, p := range lun.Portals {
		names := []string{p.Host}
		if net.ParseIP(p.Host) == nil && len(all) > 0 {
			if resolved, err := net.DefaultResolver.LookupHost(ctx, p.Host); err == nil {
				names = append(names, resolved...)
			}
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

// connections returns the addresses of a session: the one that was asked for, and the one
// that the target redirected to.
func (i *Initiator) connections(id string) (portals []Portal) {
	for _, name := range entries(i.class("iscsi_connection")) {
		if !strings.HasPrefix(name, "connection"+id+":") {
			continue
		}
		for _, prefix := range []string{"persistent_", ""} {
			dir := filepath.Join(i.class("iscsi_connection"), name)
			port, err := strconv.Atoi(attribute(dir, prefix+"port"))
			if host := attribute(dir, prefix+"address"); err == nil && host != "" {
				portals = append(portals, Portal{Host: host, Port: port})
			}
		}
	}
	return portals
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
func (s session) disks(numbers ...int) (names []string) {
	for _, target := range entries(s.device) {
		if !strings.HasPrefix(target, "target") {
			continue
		}
		for _, unit := range entries(filepath.Join(s.device, target)) {
			address := strings.Split(unit, ":")
			number, err := strconv.Atoi(address[len(address)-1])
			if err != nil || len(address) != 4 || len(numbers) > 0 && !slices.Contains(numbers, number) {
				continue
			}
			names = append(names, entries(filepath.Join(s.device, target, unit, "block"))...)
		}
	}
	return names
}

// scan has the kernel look for a LUN of a session.
func (i *Initiator) scan(ctx context.Context, s session, number int) error {
	if len(s.disks(number)) > 0 {
		return nil
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
		for _, disk := range s.disks(lun.Number) {
			id := i.id(disk)
			if len(d.Disks) > 0 && id != d.ID {
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
	name := d.Disks[0]
	if mapped := i.multipath(d.Disks); mapped != "" {
		name = mapped
	}
	sectors, err := strconv.ParseInt(attribute(i.block(name), "size"), 10, 64)
	if err != nil || sectors == 0 {
		return Device{}, noDisk(lun, "the kernel does not know its size yet")
	}
	d.Size, d.Path = sectors*512, filepath.Join(i.config.Dev, name)
	if err := i.checkNode(d.Path, name); err != nil {
		return Device{}, noDisk(lun, err.Error())
	}
	return d, nil
}

func noDisk(lun LUN, why string) error {
	return &volume.Failure{Cause: ErrNoDisk, Subject: lun.IQN, What: fmt.Sprintf("there is no LUN %d of target %s: %s", lun.Number, lun.IQN, why),
		Next: "check lun, and whether the target lets this node have it"}
}

// checkNode makes sure that the file of a device is there, and is that device's.
func (i *Initiator) checkNode(path, name string) error {
	is, err := i.number(path)
	if want := attribute(i.block(name), "dev"); err == nil && is != want {
		err = fmt.Errorf("%s is the device %s, not %s", path, is, want)
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
// of its vital product data, or else the serial number of the page 0x80.
func (i *Initiator) id(disk string) string {
	if id := attribute(i.block(disk), "device", "wwid"); id != "" {
		return strings.Join(strings.Fields(id), "_")
	}
	page, err := os.ReadFile(i.block(disk, "device", "vpd_pg80"))
	const header = 4
	if err != nil || len(page) <= header {
		return ""
	}
	return "serial." + strings.Join(strings.Fields(string(page[header:])), "_")
}

// remove flushes the disk and has the kernel forget it.
func (i *Initiator) remove(ctx context.Context, lun LUN, sessions []session) error {
	var disks []string
	for _, s := range sessions {
		disks = append(disks, s.disks(lun.Number)...)
	}
	if mapped := i.multipath(disks); mapped != "" {
		if err := i.removeMap(ctx, mapped); err != nil {
			return err
		}
	}
	for _, disk := range disks {
		if err := i.calls.Do(ctx, disk, func() error { return i.removeDisk(disk) }); err != nil {
			return err
		}
	}
	return nil
}

// removeDisk has the disk for itself until the kernel has forgotten it: nothing can begin to
// use it meanwhile.
func (i *Initiator) removeDisk(disk string) error {
	path := filepath.Join(i.config.Dev, disk)
	fd, err := eintr.Get(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0) })
	switch {
	case errors.Is(err, unix.EBUSY):
		return &volume.Failure{Cause: volume.ErrInUse, Subject: path, What: fmt.Sprintf("the disk %s is in use on this node", path), Err: err,
			Next: "it is given back once it is not mounted any more, nor part of another device"}
	case err == nil:
		defer unix.Close(fd)
		if err := eintr.Do(func() error { return unix.Fsync(fd) }); err != nil {
			i.config.Logger.Warn("a disk could not be flushed before it was given back", "disk", path, "error", err)
		}
	default: // it does not answer, and nothing can use it
		i.config.Logger.Warn("a disk could not be opened before it was given back", "disk", path, "error", err)
	}
	err = i.put(i.block(disk, "device", "delete"), "1")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// multipathPatience is how long dm-multipath may take to make a device of several paths: the
// kubelet's.
const multipathPatience = 10 * time.Second

// multipath is the dm-multipath device of paths; empty: there is none.
func (i *Initiator) multipath(disks []string) string {
	for _, disk := range disks {
		for _, holder := range entries(i.block(disk, "holders")) {
			if strings.HasPrefix(attribute(i.block(holder), "dm", "uuid"), "mpath-") {
				return holder
			}
		}
	}
	return ""
}

func isMapped(d Device) bool { return strings.HasPrefix(filepath.Base(d.Path), "dm-") }

// hasMultipathd reports whether there is a daemon that makes devices of paths, by its socket.
func (i *Initiator) hasMultipathd() bool {
	sockets, err := os.ReadFile(filepath.Join(i.config.Proc, "net/unix"))
	return err == nil && strings.Contains(string(sockets), "multipathd")
}

// removeMap removes a dm-multipath device that is not in use.
func (i *Initiator) removeMap(ctx context.Context, mapped string) error {
	return i.mapTool(ctx, mapped, "multipath", "-f", attribute(i.block(mapped), "dm", "name"))
}

// growMap gives a dm-multipath device the size of its paths.
func (i *Initiator) growMap(ctx context.Context, d Device) error {
	mapped := filepath.Base(d.Path)
	return i.mapTool(ctx, mapped, "multipathd", "resize", "map", attribute(i.block(mapped), "dm", "name"))
}

func (i *Initiator) mapTool(ctx context.Context, mapped, program string, args ...string) error {
	output, code, err := i.config.Run(ctx, program, args...)
	if err == nil && code == 0 {
		return nil
	}
	return &volume.Failure{Cause: volume.ErrInUse, Subject: mapped, Err: err, What: fmt.Sprintf("%s %s: %v (%d) %s", program, strings.Join(args, " "), err, code, lastLines(output)),
		Next: "check whether the device is still in use, and whether multipathd runs"}
}

// attribute returns a line of sysfs; empty: there is none.
func attribute(path ...string) string {
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// entries returns the names in a directory; none: it cannot be read.
func entries(dir string) (names []string) {
	all, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}
