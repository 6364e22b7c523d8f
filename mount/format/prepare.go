package format

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// gate decides between a program that is about to be started and a caller that
// has given up: whoever comes first wins.
type gate struct{ taken atomic.Bool }

// take reports whether the caller is the first.
func (g *gate) take() bool { return g.taken.CompareAndSwap(false, true) }

// errGivenUp is seen by nobody: the caller has left when it is returned.
var errGivenUp = errors.New("given up before anything was begun")

// preparation makes one device ready to be mounted.
type preparation struct {
	*Formatter
	request Request
	begun   *gate
	prepared
}

func (p *preparation) run(ctx context.Context) error {
	exclusive, err := p.look(ctx)
	if err != nil {
		return err
	}
	p.Found, _ = p.content.Filesystem()
	switch {
	case p.content.Blank() && !exclusive:
		return p.fail(OpFormat, ErrInUse, unix.EBUSY)
	case p.content.Blank():
		return p.format(ctx)
	case !p.content.has(""):
		return p.foundError(ErrNotBlank)
	}
	return p.check(ctx, exclusive)
}

func (p *preparation) fail(op string, reason Reason, err error) error {
	return fail(op, p.request, reason, err)
}

func (p *preparation) foundError(reason Reason) error {
	e := fail(OpFormat, p.request, reason, nil)
	e.Found = p.content
	return e
}

// look finds out what is on the device, and whether nobody else has it.
func (p *preparation) look(ctx context.Context) (exclusive bool, err error) {
	device, err := openDevice(p.request.Source, unix.O_EXCL)
	exclusive = err == nil
	if errors.Is(err, unix.EBUSY) {
		device, err = openDevice(p.request.Source, 0)
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
		content.Signatures, err = p.askBlkid(ctx, p.request.Source)
	}
	switch {
	case err == nil:
		return content, nil
	case ctx.Err() != nil:
		return Content{}, p.fail(OpProbe, ErrCanceled, context.Cause(ctx))
	}
	return Content{}, p.fail(OpProbe, ErrUnreadable, err)
}

// format makes a file system, after the device was found blank, by looking
// again under the lock: the first look may be older than another's mkfs.
func (p *preparation) format(ctx context.Context) error {
	if isReadOnly(p.request.Request) {
		return p.fail(OpFormat, ErrReadOnly, nil)
	}
	mkfs, err := p.mkfs()
	if err != nil {
		return err
	}
	lock, err := lockDevice(p.request.Source)
	if err != nil {
		return p.lockError(err)
	}
	defer lock.Close()
	release, err := p.takeSlot(ctx)
	if err != nil {
		return p.fail(OpFormat, ErrCanceled, err)
	}
	defer release()
	exclusive, err := p.look(ctx)
	switch {
	case err != nil:
		return err
	case !exclusive:
		return p.fail(OpFormat, ErrInUse, unix.EBUSY)
	case !p.content.Blank():
		return p.run(ctx) // another made one meanwhile
	}
	if !p.begun.take() {
		return errGivenUp
	}
	mkfs.keep = lock
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

func (p *preparation) lockError(err error) error {
	switch {
	case errors.Is(err, unix.EAGAIN):
		return p.fail(OpFormat, ErrInUse, errors.New("another process is formatting it"))
	case errors.Is(err, unix.EROFS), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, errWriteProtected):
		return p.fail(OpFormat, ErrReadOnly, err)
	}
	return p.openError(err)
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
	return &command{path: path, args: append(args, p.request.Source)}, nil
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
func (p *preparation) check(ctx context.Context, exclusive bool) error {
	if p.request.Check == CheckNever || isReadOnly(p.request.Request) {
		return nil
	}
	if p.Found == "" {
		p.Unchecked = fmt.Sprintf("it has %s", p.content)
		return nil
	}
	if !exclusive {
		p.Unchecked = "the device is in use"
		return nil
	}
	path, err := p.find("fsck")
	if err != nil {
		p.Unchecked = err.Error()
		return nil
	}
	if !p.begun.take() {
		return errGivenUp
	}
	fsck := &command{path: path, args: []string{"-T", "-t", p.Found, "-a", p.request.Source}}
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
