package format

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/blockingcall"
)

// DefaultFSType is the file system that is made where none is asked for.
const DefaultFSType = "ext4"

// Config configures a [Formatter].
type Config struct {
	// Mounter mounts; it must not be nil. It is given what it lacks by host.Wrap.
	Mounter mount.Interface
	// Logger gets a line for every mkfs, fsck and resize; nil logs nothing.
	Logger *slog.Logger
	// MaxFormats is how many mkfs of this Formatter may run at once, as each may
	// keep a disk busy for minutes; 0 means any number.
	MaxFormats int
	// SlotTimeout is for how long a mkfs counts towards MaxFormats; 0 means
	// until it is done. One that runs longer goes on without being counted.
	SlotTimeout time.Duration
	// ToolDirs is where programs are looked for; nil means PATH and then
	// /usr/sbin, /sbin, /usr/bin, /bin.
	ToolDirs []string
}

// Formatter formats, checks, grows and mounts devices of this host. It is safe
// for concurrent use; calls for one device run one after the other.
type Formatter struct {
	config Config
	calls  blockingcall.Group[uint64] // by device number
	slots  chan struct{}
}

// New returns a Formatter. It does no I/O.
func New(c Config) *Formatter {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Mounter = host.Wrap(c.Mounter, c.Logger)
	f := &Formatter{config: c}
	if c.MaxFormats > 0 {
		f.slots = make(chan struct{}, c.MaxFormats)
	}
	return f
}

// Check says when an existing file system is checked before it is mounted.
type Check int

// The policies.
const (
	// CheckWritable checks before a mount that may write: fsck -a, which makes safe
	// corrections only.
	CheckWritable Check = iota
	// CheckNever leaves it to the kernel's journal.
	CheckNever
)

// Request asks for a device to be mounted, and to be formatted before where it
// is blank. Those that take a Request only read it.
type Request struct {
	// Request is the mount. Source is the path of a block device; an empty
	// FSType means [DefaultFSType].
	mount.Request
	// FormatOptions are further arguments of the mkfs, before its defaults.
	// Nothing checks them: they must not come from untrusted users.
	FormatOptions []string
	// Check is when fsck runs.
	Check Check
	// Progress is told what takes long when it begins, "making a file system of type ext4" or
	// "checking the file system", which do not say how far they are; nil: nothing
	// is told. It is not called once FormatAndMount has returned.
	Progress func(doing string)
}

// Result is what FormatAndMount did, as far as it came.
type Result struct {
	// Found is the one file system that was on the device, or empty.
	Found string
	// Formatted tells that a file system was made.
	Formatted bool
	// Corrected tells that fsck found errors and corrected all of them.
	Corrected bool
	// Unchecked says why fsck gave no verdict where one was due, or is empty:
	// it is not installed, the device is in use, or fsck itself failed. The
	// mount was tried all the same.
	Unchecked string
}

// FormatAndMount mounts a device, after making a file system on it if it is proven
// blank (the package comment says how), or checking the one it has.
//
//   - Another file system than the one asked for is never replaced. The mount is tried as
//     asked, since ext4 mounts ext3. If it fails, the error has the reason
//     [ErrWrongFilesystem] and names what was found.
//   - A device in use is neither formatted nor checked, but mounted a second time if it
//     has a file system.
//   - A second call never formats again. It mounts at another target; at the same target
//     it fails with the mount's ErrBusy.
//   - While another process has the device for the same purpose the error is [ErrInUse].
//     Retry it later.
//   - Other errors are *[Error], or the *mount.Error of a mount that failed though the
//     file system is the right one.
//   - When ctx ends, the error says by Uncertain whether a mkfs or fsck was begun. That
//     goes on, and the next call for the device waits for it.
func (f *Formatter) FormatAndMount(ctx context.Context, request Request) (Result, error) {
	r := request
	if r.FSType == "" {
		r.FSType = DefaultFSType
	}
	if strings.Trim(r.FSType, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
		return Result{}, fail(OpProbe, r, ErrNotSupported, nil)
	}
	device, err := nodeAt(r.Source)
	if err != nil {
		return Result{}, fail(OpProbe, r, ErrNotBlockDevice, err)
	}
	r, stop := r.untilReturn()
	defer stop()
	results := make(chan Result, 1) // read only once the call has returned
	var begun gate
	err = f.calls.Do(ctx, device.number, func() error {
		p := preparation{Formatter: f, request: r, node: device, begun: &begun}
		err := p.run(ctx)
		results <- p.Result
		return err
	})
	// The call's own error may well wrap another of this type.
	if abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err); ok && error(abandoned) == err {
		e := fail(OpProbe, r, ErrCanceled, abandoned.Err)
		e.Uncertain = abandoned.Started && !begun.close() || abandoned.Earlier
		return Result{}, e
	}
	return <-results, err
}

// fail makes the *Error of a failed step.
func fail(op string, r Request, reason Reason, err error) *Error {
	return &Error{Op: op, Device: r.Source, FSType: r.FSType, Reason: reason, Err: err}
}

// isReadOnly reports whether a mount is asked for that cannot write. The last
// of "ro" and "rw" counts.
func isReadOnly(r mount.Request) bool {
	readOnly := false
	for _, element := range slices.Concat(r.Options, r.Sensitive) {
		for option := range strings.SplitSeq(element, ",") {
			switch option {
			case "ro":
				readOnly = true
			case "rw":
				readOnly = false
			}
		}
	}
	return readOnly
}
