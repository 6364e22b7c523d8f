package format

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
)

// gate decides between a change of a device and a caller that has given up: the
// first wins.
type gate struct{ state atomic.Int32 }

const (
	gatePassed = 1 + iota
	gateClosed
)

// pass reports whether something may be done. It may be asked again.
func (g *gate) pass() bool {
	return g.state.CompareAndSwap(0, gatePassed) || g.state.Load() == gatePassed
}

// close keeps everything from being done, and reports whether nothing was.
func (g *gate) close() bool { return g.state.CompareAndSwap(0, gateClosed) }

// errGivenUp is never seen: the caller has left when it is returned.
var errGivenUp = errors.New("given up before anything was begun")

// preparation makes one device ready to be mounted.
type preparation struct {
	*Formatter
	request Request
	node    node
	begun   *gate
	lock    *os.File
	// sharing says why the lock is the shared one, and the device cannot be
	// formatted; empty where it is exclusive.
	sharing Reason
	content Content // before it was formatted
	Result
}

// run does all of it, under the lock.
func (p *preparation) run(ctx context.Context) error {
	if err := p.takeLock(); err != nil {
		return err
	}
	defer func() { release(p.lock) }()
	if err := p.prepare(ctx); err != nil {
		return err
	}
	if p.sharing == "" {
		shared, err := share(p.node, p.lock)
		if err != nil {
			return p.lockError(err)
		}
		p.lock = shared
	}
	return p.mount(ctx)
}

// prepare makes sure that there is a file system.
func (p *preparation) prepare(ctx context.Context) error {
	exclusive, err := p.look(ctx)
	if err != nil {
		return err
	}
	p.Found, _ = p.content.Filesystem()
	switch {
	case p.content.Blank() && p.sharing != "":
		return p.fail(OpFormat, p.sharing, nil)
	case p.content.Blank() && !exclusive:
		return p.fail(OpFormat, ErrInUse, unix.EBUSY)
	case p.content.Blank():
		if err := p.checkNodes(); err != nil {
			return err
		}
		return p.format(ctx)
	case !p.content.has(""):
		return p.foundError(ErrNotBlank)
	case p.request.Check == CheckNever || isReadOnly(p.request.Request):
		return nil
	case p.sharing != "":
		p.Unchecked = string(p.sharing)
	case !exclusive:
		p.Unchecked = string(ErrInUse)
	}
	return p.check(ctx)
}

// checkNodes refuses a device whose node is mounted elsewhere, as a block volume's is: its user
// may be about to write.
func (p *preparation) checkNodes() error {
	nodes, err := table.NodesOf(table.Of(p.config.Mounter), p.node.number)
	for _, e := range nodes {
		if e.Target != p.node.path {
			return p.fail(OpFormat, ErrInUse, fmt.Errorf("it is a block volume at %s: %w", e.Target, unix.EBUSY))
		}
	}
	if err != nil {
		return p.fail(OpFormat, ErrUnreadable, err)
	}
	return nil
}

// takeLock takes the exclusive lock where the device may be written to, else
// the shared one.
func (p *preparation) takeLock() (err error) {
	if isReadOnly(p.request.Request) {
		p.sharing = ErrReadOnly
	} else {
		p.lock, err = lockExclusively(p.node)
	}
	switch {
	case errors.Is(err, unix.EBUSY): // mounted, on kernels that then refuse writers
		p.sharing = ErrInUse
	case errors.Is(err, errWriteProtected), errors.Is(err, unix.EROFS):
		p.sharing = ErrReadOnly
	}
	if p.sharing != "" {
		p.lock, err = lockShared(p.node)
	}
	if err != nil {
		return p.lockError(err)
	}
	return nil
}

func (p *preparation) lockError(err error) error {
	if errors.Is(err, unix.EAGAIN) {
		return p.fail(OpProbe, ErrInUse, errors.New("another process is formatting, checking or mounting it"))
	}
	return p.openError(err)
}

// mount mounts the device under the shared lock: it fails while another process
// claims the device.
func (p *preparation) mount(ctx context.Context) error {
	if !p.begun.pass() {
		return errGivenUp
	}
	request := p.request.Request
	request.Source = p.node.path
	err := mount.Mount(ctx, p.config.Mounter, request)
	if err != nil && !errors.Is(err, mount.ErrBusy) && p.content.has("") && !p.content.has(p.request.FSType) {
		wrong := fail(OpMount, p.request, ErrWrongFilesystem, err)
		wrong.Found = p.content
		return wrong
	}
	return err
}

func (p *preparation) fail(op string, reason Reason, err error) error {
	return fail(op, p.request, reason, err)
}

func (p *preparation) foundError(reason Reason) error {
	e := fail(OpFormat, p.request, reason, nil)
	e.Found = p.content
	return e
}

// look finds the device's content and, under the exclusive lock, whether another
// process has claimed it. Under the shared lock it claims nothing, as that would
// make another process's mount fail.
func (p *preparation) look(ctx context.Context) (exclusive bool, err error) {
	var device *device
	if p.sharing == "" {
		device, err = openDevice(p.node, unix.O_EXCL)
		exclusive = err == nil
	}
	if !exclusive && (err == nil || errors.Is(err, unix.EBUSY)) {
		device, err = openDevice(p.node, 0)
	}
	if err != nil {
		return false, p.openError(err)
	}
	defer device.Close()
	p.content, err = p.inspect(ctx, device)
	return exclusive, err
}

func (p *preparation) openError(err error) error {
	switch {
	case errors.Is(err, unix.EBUSY):
		return p.fail(OpProbe, ErrInUse, err)
	case errors.Is(err, unix.ENOTBLK), errors.Is(err, os.ErrNotExist):
		return p.fail(OpProbe, ErrNotBlockDevice, err)
	}
	return p.fail(OpProbe, ErrUnreadable, err)
}

// inspect looks at the device itself and, where that finds no signature, asks
// blkid(8) as well.
func (p *preparation) inspect(ctx context.Context, device *device) (Content, error) {
	content, err := Inspect(ctx, device, device.size)
	if err == nil && len(content.Signatures) == 0 {
		content.Signatures, err = p.askBlkid(ctx, p.node.path)
	}
	switch {
	case err == nil:
		return content, nil
	case ctx.Err() != nil:
		return Content{}, p.fail(OpProbe, ErrCanceled, context.Cause(ctx))
	}
	return Content{}, p.fail(OpProbe, ErrUnreadable, err)
}

// format makes a file system.
func (p *preparation) format(ctx context.Context) error {
	mkfs, err := p.mkfs()
	if err != nil {
		return err
	}
	release, err := p.takeSlot(ctx)
	if err != nil {
		return p.fail(OpFormat, ErrCanceled, err)
	}
	defer release()
	if p.slots != nil { // the look before may be old by now
		if err := p.lookAgain(ctx); err != nil {
			return err
		}
	}
	if !p.begun.pass() {
		return errGivenUp
	}
	p.request.Progress("making a file system of type " + p.request.FSType)
	output, err := mkfs.finish()
	p.config.Logger.InfoContext(ctx, "mkfs", "command", mkfs.String(), "error", err)
	if err != nil {
		e := fail(OpFormat, p.request, ErrFormatFailed, err)
		e.Command, e.Output = mkfs.String(), output
		return e
	}
	p.Formatted = true
	return nil
}

// lookAgain makes sure that the device is still blank and no other program's.
func (p *preparation) lookAgain(ctx context.Context) error {
	exclusive, err := p.look(ctx)
	switch {
	case err != nil:
		return err
	case !exclusive:
		return p.fail(OpFormat, ErrInUse, unix.EBUSY)
	case !p.content.Blank():
		return p.foundError(ErrInUse)
	}
	return nil
}

// mkfs is the command that makes the file system: mount-utils' defaults, save
// that xfs is not forced, so that mkfs.xfs looks for signatures itself.
func (p *preparation) mkfs() (*command, error) {
	name := "mkfs." + p.request.FSType
	path, err := p.find(name)
	if err != nil {
		return nil, p.fail(OpFormat, ErrToolMissing, err)
	}
	args := append([]string(nil), p.request.FormatOptions...)
	switch p.request.FSType {
	case "ext3", "ext4":
		// -F: no question is asked of a terminal; -m0: no blocks are kept for
		// the super-user.
		args = append(args, "-F", "-m0")
	}
	return &command{path: path, args: append(args, p.node.path), keep: p.lock}, nil
}

// takeSlot waits for one of the mkfs that may run at once.
func (f *Formatter) takeSlot(ctx context.Context) (release func(), err error) {
	if f.slots == nil {
		return func() {}, nil
	}
	select {
	case f.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return f.slotRelease(), nil
}

// Exit statuses of fsck(8), which are bits.
const (
	fsckCorrected   = 1
	fsckUncorrected = 4
)

// check runs fsck on a file system that is to be written to. That fsck cannot
// run is no reason not to mount.
func (p *preparation) check(ctx context.Context) error {
	if p.Found == "" {
		p.Unchecked = fmt.Sprintf("it has %s", p.content)
	}
	if p.Unchecked != "" {
		return nil
	}
	path, err := p.find("fsck")
	if err != nil {
		p.Unchecked = err.Error()
		return nil
	}
	if !p.begun.pass() {
		return errGivenUp
	}
	fsck := &command{path: path, args: []string{"-T", "-t", p.Found, "-a", p.node.path}, keep: p.lock}
	p.request.Progress("checking the file system")
	output, err := fsck.finish()
	status := exitStatus(err)
	p.config.Logger.InfoContext(ctx, "fsck", "command", fsck.String(), "status", status, "output", output)
	switch {
	case err == nil:
	case status > 0 && status&fsckUncorrected != 0:
		e := fail(OpCheck, p.request, ErrUncorrected, err)
		e.Command, e.Output = fsck.String(), output
		return e
	case status == fsckCorrected:
		p.Corrected = true
	default:
		p.Unchecked = fmt.Sprintf("fsck failed: %v: %s", err, output)
	}
	return nil
}
