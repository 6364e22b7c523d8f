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
)

func (c Cause) Error() string { return string(c) }
