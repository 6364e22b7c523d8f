package mount

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/internal/fstypes"
)

func causeOfErrno(errno unix.Errno) Cause {
	switch errno {
	case unix.EBUSY, unix.ETXTBSY:
		return ErrBusy
	case unix.EPERM, unix.EACCES:
		return ErrNotPermitted
	case unix.ENODEV:
		return ErrNoFilesystem
	case unix.ENOENT:
		return ErrNoTarget
	case unix.ESTALE:
		return ErrStaleHandle
	case unix.ETIMEDOUT, unix.EHOSTDOWN, unix.EHOSTUNREACH, unix.ENETUNREACH:
		return ErrTimedOut
	case unix.ECONNREFUSED, unix.ECONNRESET:
		return ErrConnectionRefused
	case unix.EROFS:
		return ErrReadOnlyDevice
	case unix.EPROTONOSUPPORT, unix.EOPNOTSUPP:
		return ErrVersionUnsupported
	case unix.EUCLEAN:
		return ErrNeedsFsck
	case unix.ENOTBLK, unix.ENXIO:
		return ErrNoSource
	case unix.EIO:
		return ErrIO
	}
	return ErrUnknown
}

// causeOfMountErrno is what an errno means to the mount of a request, where the
// kernel said nothing more.
func causeOfMountErrno(r Request, errno unix.Errno) Cause {
	disk, share := isDisk(r), fstypes.IsShare(r.FSType)
	switch errno {
	case unix.EINVAL:
		switch {
		case disk:
			return ErrWrongFilesystem // options are refused by name
		case len(r.Options)+len(r.Sensitive) > 0:
			return ErrBadOption
		}
		return ErrUnknown
	case unix.EBADMSG, unix.EUCLEAN:
		return ErrNeedsFsck // a checksum or a structure is wrong
	case unix.ENOMEDIUM, unix.EMEDIUMTYPE:
		return ErrNoSource
	case unix.ENOKEY, unix.EKEYREJECTED, unix.EKEYEXPIRED, unix.EKEYREVOKED:
		return ErrAccessDenied
	case unix.EPROTO, unix.EPFNOSUPPORT, unix.EAFNOSUPPORT, unix.ESOCKTNOSUPPORT:
		return ErrVersionUnsupported
	case unix.EOPNOTSUPP:
		if !share {
			return ErrUnknown
		}
	case unix.ENOENT:
		switch {
		case share:
			return ErrNoSuchExport
		case strings.HasPrefix(r.Source, "/") || r.FSType == "overlay":
			return ErrNoSource // the target is opened before, and says so itself
		}
	case unix.EACCES:
		switch {
		case share:
			return ErrAccessDenied
		case disk:
			return ErrReadOnlyDevice // or else the device could not be opened, which root always can
		}
	}
	return causeOfErrno(errno)
}
