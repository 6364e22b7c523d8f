package mount

// Cause is why a mount or unmount failed. Causes are errors and comparable:
// test for one with errors.Is.
type Cause string

// The causes.
const (
	ErrUnknown            Cause = "unknown cause"
	ErrHelperMissing      Cause = "the mount helper is not installed on this node"
	ErrNoFilesystem       Cause = "this kernel does not have the file system"
	ErrNameResolution     Cause = "the server's name does not resolve"
	ErrConnectionRefused  Cause = "the server refuses connections"
	ErrTimedOut           Cause = "the server does not answer"
	ErrAccessDenied       Cause = "access denied by the server"
	ErrNoSuchExport       Cause = "the server has no such export"
	ErrVersionUnsupported Cause = "the server does not support this protocol or version"
	ErrStaleHandle        Cause = "stale file handle"
	ErrBadOption          Cause = "bad mount option"
	ErrWrongFilesystem    Cause = "wrong file system on the device"
	ErrNeedsFsck          Cause = "the file system needs a check"
	ErrReadOnlyDevice     Cause = "the device is read-only"
	ErrBusy               Cause = "busy"
	ErrNotPermitted       Cause = "not permitted"
	ErrNoTarget           Cause = "the mount point does not exist"
	ErrNoSource           Cause = "the source does not exist"
	ErrNotMounted         Cause = "not mounted"
	ErrCanceled           Cause = "gave up waiting"
	ErrTargetIsLink       Cause = "the mount point is a symbolic link"
	ErrTargetReplaced     Cause = "the mount point was replaced while it was being mounted on"
	ErrKindMismatch       Cause = "source and mount point are not both directories or both files"
	ErrNoLockDaemon       Cause = "rpc.statd is not running on this node"
	ErrNeedsCommand       Cause = "the mount needs mount(8), which is not to be used here"
	ErrIO                 Cause = "the device cannot be read"
)

func (c Cause) Error() string { return string(c) }

// causedError is an error whose cause is known where it arises, or just that
// cause where there is nothing to add.
type causedError struct {
	cause Cause
	err   error // nil: nothing to add
}

func (e *causedError) Error() string {
	if e.err == nil {
		return e.cause.Error()
	}
	return e.err.Error()
}

func (e *causedError) Unwrap() error { return e.err }
