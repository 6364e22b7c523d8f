// Package openiscsi reaches the disks of iSCSI targets through Linux and open-iscsi.
//
//   - Sessions and disks are found, scanned for, grown and removed in sysfs. Nothing is taken
//     from the output of a program.
//   - Sessions are opened and closed by iscsiadm(8), since the login is its daemon's. It is
//     called without a shell, and ends with its caller's context.
//   - Passwords reach the daemon by the files of its database, which only root reads, and
//     never by an argument.
//   - There is no discovery: a volume names its target and portals.
package openiscsi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/volume"
)

// The reasons of failures.
const (
	ErrNoInitiator  volume.Cause = "open-iscsi is not there"
	ErrLogin        volume.Cause = "the target refuses the login"
	ErrUnreachable  volume.Cause = "the target cannot be reached"
	ErrNoDisk       volume.Cause = "the target shows no such disk"
	ErrNotOneDisk   volume.Cause = "the paths to the disk lead to several disks"
	ErrNotPermitted volume.Cause = "the file of the target's login cannot be written"
)

// Portal is the address of a target: an IP address or a name, and a TCP port.
type Portal struct {
	Host string
	Port int
}

// String returns the portal as iscsiadm takes it.
func (p Portal) String() string { return net.JoinHostPort(p.Host, strconv.Itoa(p.Port)) }

// Interface is how the node reaches a target.
type Interface struct {
	// Name is open-iscsi's name, such as "default".
	Name string
	// InitiatorName, if not empty, is what the node calls itself. Then the interface is made
	// with the settings of the interface Base, and removed with its last session.
	InitiatorName, Base string
}

// LUN names a disk of a target.
type LUN struct {
	IQN       string
	Number    int
	Portals   []Portal // at least one
	Interface Interface
}

// CHAP has the node's name and password, and the target's, which may be empty.
type CHAP struct {
	Username, Password, UsernameIn, PasswordIn string
}

// Device is a disk on this node.
type Device struct {
	// Path is the device: dm-multipath's, or else the first of Disks.
	Path string
	// Disks are the kernel's names of the paths to the disk, such as "sdb".
	Disks []string
	// ID is what no other disk has: its WWID, or else its serial number; may be empty.
	ID string
	// Size is in bytes.
	Size int64
}

// Config configures an [Initiator].
type Config struct {
	// Sys, Dev and Proc stand for /sys, /dev and /proc.
	Sys, Dev, Proc string
	// Databases are where open-iscsi may keep its records; nil: /etc/iscsi and /var/lib/iscsi.
	Databases []string
	// ToolDirs is where programs are looked for; nil: PATH and the directories of root's.
	ToolDirs []string
	// Run runs a program to its end and returns its exit code; nil: that of this node.
	Run func(ctx context.Context, program string, args ...string) (output string, code int, err error)
	// UsedBy says what on this node has a device, other than the kernel, which is asked by an
	// exclusive open; empty: nothing has it. Nil: nothing has any.
	UsedBy func(device string) (user string, err error)
	// Logger takes what is not the caller's failure; nil drops it.
	Logger *slog.Logger
	// Patience is for how long a disk may take to appear; 0: 30 s.
	Patience time.Duration
}

// Initiator is open-iscsi of this node. It is safe for concurrent use, for one target one
// call after the other.
type Initiator struct {
	config Config
	calls  blockingcall.Group[string] // into the kernel, by disk or host
	// number is a block device's, as in sysfs; put writes to a file of sysfs; open opens a disk
	// that nothing else has; lookup has the addresses of a host.
	number func(path string) (string, error)
	put    func(path, value string) error
	open   func(path string) (int, error)
	lookup func(ctx context.Context, host string) ([]string, error)
}

// New returns an Initiator. It does no I/O.
func New(c Config) *Initiator {
	c.Sys, c.Dev, c.Proc = cmp.Or(c.Sys, "/sys"), cmp.Or(c.Dev, "/dev"), cmp.Or(c.Proc, "/proc")
	if c.Databases == nil {
		c.Databases = []string{"/etc/iscsi", "/var/lib/iscsi"}
	}
	if c.Run == nil {
		c.Run = c.run
	}
	if c.UsedBy == nil {
		c.UsedBy = func(string) (string, error) { return "", nil }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Patience = cmp.Or(c.Patience, 30*time.Second)
	return &Initiator{config: c, number: number, put: put, open: openAlone, lookup: net.DefaultResolver.LookupHost}
}

// Login makes sure that there is a session with each portal, and returns the disk. It is
// idempotent. One session suffices: portals that do not answer are left out, and are tried
// by the next Login.
//
//   - added is lun with the portals that did not show the disk before, also after an error.
//     Logout of it undoes this call, and nothing of earlier ones.
//   - chap is used for new sessions only; nil: there is no authentication.
//   - The error is a *[volume.Failure] with one of the package's reasons, that of ctx, or one
//     of the system's: what cannot be read is never taken for absent.
func (i *Initiator) Login(ctx context.Context, lun LUN, chap *CHAP) (d Device, added LUN, err error) {
	added = lun
	added.Portals = nil
	sessions, err := i.sessions(ctx, lun)
	if err != nil {
		return Device{}, added, err
	}
	if added.Portals, err = without(lun, sessions); err != nil {
		return Device{}, LUN{}, err
	}
	d, err = i.login(ctx, lun, sessions, chap)
	return d, added, err
}

// without are the portals of a LUN by which its disk is not there.
func without(lun LUN, sessions []session) (portals []Portal, err error) {
	for _, p := range lun.Portals {
		n := slices.IndexFunc(sessions, func(s session) bool { return slices.Contains(s.portals, p) })
		if n >= 0 {
			disks, err := sessions[n].disks(lun.Number)
			if err != nil {
				return nil, err
			}
			if len(disks) > 0 {
				continue
			}
		}
		portals = append(portals, p)
	}
	return portals, nil
}

func (i *Initiator) login(ctx context.Context, lun LUN, sessions []session, chap *CHAP) (Device, error) {
	failures := i.connectAll(ctx, lun, sessions, chap)
	sessions, err := i.sessions(ctx, lun)
	if err != nil {
		return Device{}, err
	}
	if len(sessions) == 0 {
		return Device{}, cmp.Or(errors.Join(failures...), context.Cause(ctx), noSession(lun))
	}
	for _, failure := range failures {
		i.config.Logger.Warn("a portal is left out", "target", lun.IQN, "error", failure)
	}
	for _, s := range sessions {
		if err := i.scan(ctx, s, lun.Number); err != nil {
			return Device{}, err
		}
	}
	return i.await(ctx, lun)
}

func noSession(lun LUN) error {
	return &volume.Failure{Cause: ErrUnreachable, Subject: lun.IQN, What: fmt.Sprintf("there is no session with %s, although the login succeeded", lun.IQN),
		Next: "see the log of iscsid"}
}

// connectAll opens sessions with the portals that have none, all at once, since one that is
// down takes its time.
func (i *Initiator) connectAll(ctx context.Context, lun LUN, sessions []session, chap *CHAP) (failures []error) {
	var missing []Portal
	for _, p := range lun.Portals {
		if !hasPortal(sessions, p) {
			missing = append(missing, p)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := i.makeInterface(ctx, lun.Interface); err != nil {
		return []error{err}
	}
	errs := make([]error, len(missing))
	var done sync.WaitGroup
	for n, p := range missing {
		done.Go(func() { errs[n] = i.connect(ctx, lun, p, chap) })
	}
	done.Wait()
	for _, err := range errs {
		if err != nil {
			failures = append(failures, err)
		}
	}
	return failures
}

// connect opens a session with a portal.
func (i *Initiator) connect(ctx context.Context, lun LUN, p Portal, chap *CHAP) error {
	node := nodeArgs(lun, p)
	if err := i.iscsiadm(ctx, lun.IQN, p, append(node, "-o", "new")...); err != nil {
		return err
	}
	err := i.configure(lun, p, chap)
	if err == nil {
		err = i.iscsiadm(ctx, lun.IQN, p, append(node, "--login")...)
	}
	if failed, ok := errors.AsType[*exitError](err); ok && failed.code == codeSessionExists {
		return nil
	}
	if err != nil { // the file may have a password
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return errors.Join(err, i.forget(ctx, lun, p))
	}
	return nil
}

// forget removes the record of a portal, and halves of records.
func (i *Initiator) forget(ctx context.Context, lun LUN, p Portal) error {
	err := i.absent(i.iscsiadm(ctx, lun.IQN, p, append(nodeArgs(lun, p), "-o", "delete")...))
	if errors.Is(err, exec.ErrNotFound) { // so are the records
		return nil
	}
	for _, database := range i.config.Databases {
		err = errors.Join(err, inDatabase(database, func() error { return nil }))
	}
	return err
}

// absent drops the error of a record or session that is not there.
func (i *Initiator) absent(err error) error {
	if failed, ok := errors.AsType[*exitError](err); ok && (failed.code == codeNoRecords || failed.code == codeNoSession) {
		return nil
	}
	return err
}

func nodeArgs(lun LUN, p Portal) []string {
	return []string{"-m", "node", "-T", lun.IQN, "-p", p.String(), "-I", lun.Interface.Name}
}

// Find returns a disk that is there. The error is a *[volume.Failure] with [ErrNoDisk] or
// [ErrNotOneDisk].
func (i *Initiator) Find(ctx context.Context, lun LUN) (Device, error) {
	sessions, err := i.sessions(ctx, lun)
	if err != nil {
		return Device{}, err
	}
	return i.device(lun, sessions)
}

// await waits until the disk appears. Sysfs tells of nothing, so it is read again; a disk
// takes some milliseconds.
func (i *Initiator) await(ctx context.Context, lun LUN) (Device, error) {
	end := time.Now().Add(i.config.Patience)
	mapped := time.Now().Add(multipathPatience)
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		d, err := i.Find(ctx, lun)
		waits := false
		if err == nil && len(d.Disks) > 1 && !isMapped(d) && time.Now().Before(mapped) {
			waits, err = i.hasMultipathd()
		}
		if !waits && (err == nil || !errors.Is(err, ErrNoDisk) || !time.Now().Before(end)) {
			return d, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return Device{}, cmp.Or(err, context.Cause(ctx))
		}
	}
}

// Rescan has the kernel ask the target for the size of the disk, and returns it as it is
// then.
func (i *Initiator) Rescan(ctx context.Context, lun LUN) (Device, error) {
	d, err := i.Find(ctx, lun)
	if err != nil {
		return d, err
	}
	for _, disk := range d.Disks {
		if err := i.write(ctx, disk, i.block(disk, "device", "rescan"), "1"); err != nil {
			return d, err
		}
	}
	if isMapped(d) {
		if err := i.growMap(ctx, d); err != nil {
			return d, err
		}
	}
	return i.Find(ctx, lun)
}

// Logout removes the disk from this node, and closes the sessions that show no other disk.
// It is idempotent.
//
//   - The disk's data is flushed before. A failure of that is logged: the last user has seen
//     it, and there is nobody left to write it.
//   - A disk in use stays, with its session: the error matches [volume.ErrInUse]. The paths to
//     it that are not in use go.
func (i *Initiator) Logout(ctx context.Context, lun LUN) error {
	sessions, err := i.sessions(ctx, lun)
	if err != nil {
		return err
	}
	busy := i.remove(ctx, lun, sessions)
	if busy != nil && !errors.Is(busy, volume.ErrInUse) {
		return busy
	}
	var open []session
	for _, s := range sessions {
		disks, err := s.disks()
		if err != nil {
			return err
		}
		if len(disks) > 0 {
			open = append(open, s)
			continue
		}
		if err := i.absent(i.iscsiadm(ctx, lun.IQN, s.portal(lun), "-m", "session", "-r", s.id, "--logout")); err != nil {
			return err
		}
	}
	for _, p := range lun.Portals {
		if hasPortal(open, p) {
			continue
		}
		if err := i.forget(ctx, lun, p); err != nil {
			return err
		}
	}
	return cmp.Or(busy, i.removeInterface(ctx, lun.Interface))
}
