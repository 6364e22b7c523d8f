package mount

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/internal/failure"
)

func TestCauseOfKernel(t *testing.T) {
	tmpfs := Request{Source: "tmpfs", FSType: "tmpfs", Options: []string{"size=1k"}}
	disk := Request{Source: "/dev/sdb1", FSType: "ext4"}
	nfs := Request{Source: "10.0.0.1:/e", FSType: "nfs4", Options: []string{"nfsvers=4.1"}}
	overlay := Request{Source: "overlay", FSType: "overlay", Options: []string{"lowerdir=/x"}}
	bind := Request{Source: "/a", Options: []string{"bind"}}
	tests := []struct {
		request Request
		errno   unix.Errno
		lines   []string
		cause   Cause
		option  string
	}{
		{tmpfs, unix.EINVAL, []string{"e tmpfs: Unknown parameter 'frobnicate'"}, ErrBadOption, "frobnicate"},
		{tmpfs, unix.EINVAL, []string{"e tmpfs: Bad value for 'size'"}, ErrBadOption, "size"},
		{tmpfs, unix.EINVAL, []string{"tmpfs: Unsupported parameter 'huge'"}, ErrBadOption, "huge"},
		{tmpfs, unix.EINVAL, nil, ErrBadOption, ""},
		{Request{FSType: "proc"}, unix.EINVAL, nil, ErrUnknown, ""},
		{tmpfs, unix.EPERM, nil, ErrNotPermitted, ""},
		{Request{FSType: "proc"}, unix.EPERM, []string{"e VFS: Mount too revealing"}, ErrNotPermitted, ""},
		{Request{FSType: "nosuchfs"}, unix.ENODEV, nil, ErrNoFilesystem, ""},
		{disk, unix.EINVAL, nil, ErrWrongFilesystem, ""},
		{disk, unix.EINVAL, []string{"e ext4: Unknown parameter 'foo'"}, ErrBadOption, "foo"},
		{disk, unix.EINVAL, []string{"e EXT4-fs (sdb1): Can't find ext4 filesystem"}, ErrWrongFilesystem, ""},
		{disk, unix.EINVAL, []string{"e XFS (sdb1): Invalid superblock magic number"}, ErrWrongFilesystem, ""},
		{disk, unix.EUCLEAN, nil, ErrNeedsFsck, ""},
		{disk, unix.EBADMSG, nil, ErrNeedsFsck, ""},
		{disk, unix.EROFS, nil, ErrReadOnlyDevice, ""},
		{disk, unix.EACCES, []string{"e /dev/sdb1: Can't open blockdev"}, ErrReadOnlyDevice, ""},
		{disk, unix.ENOTBLK, []string{"e /dev/sdb1: Can't lookup blockdev"}, ErrNoSource, ""},
		{disk, unix.ENOENT, []string{"e /dev/sdb1: Can't lookup blockdev"}, ErrNoSource, ""},
		{disk, unix.ENXIO, nil, ErrNoSource, ""},
		{disk, unix.ENOMEDIUM, nil, ErrNoSource, ""},
		{disk, unix.EIO, nil, ErrIO, ""},
		{disk, unix.EBUSY, []string{"e /dev/sdb1: Can't open blockdev"}, ErrBusy, ""},
		{bind, unix.ENOENT, nil, ErrNoSource, ""},
		{overlay, unix.ENOENT, []string{"e overlay: failed to resolve '/x': -2"}, ErrNoSource, ""},
		{overlay, unix.EINVAL, []string{"e overlay: missing 'lowerdir'"}, ErrBadOption, "lowerdir"},
		{nfs, unix.ENOENT, nil, ErrNoSuchExport, ""},
		{nfs, unix.EACCES, nil, ErrAccessDenied, ""},
		{nfs, unix.EPROTONOSUPPORT, nil, ErrVersionUnsupported, ""},
		{nfs, unix.EPROTONOSUPPORT, []string{"e NFSv4 is not compiled into kernel"}, ErrNoFilesystem, ""},
		{nfs, unix.ECONNREFUSED, nil, ErrConnectionRefused, ""},
		{nfs, unix.ETIMEDOUT, nil, ErrTimedOut, ""},
		{nfs, unix.ESTALE, nil, ErrStaleHandle, ""},
		{nfs, unix.EINVAL, []string{"e NFS: Value for 'retrans' mount option is out of range"}, ErrBadOption, "retrans"},
		{nfs, unix.EINVAL, []string{"e NFS: Server address does not match proto= option"}, ErrBadOption, "proto"},
		{nfs, unix.ENOKEY, nil, ErrAccessDenied, ""},
	}
	for _, tc := range tests {
		t.Run(fmt.Sprintf("%s %v %q", tc.request.FSType, tc.errno, tc.lines), func(t *testing.T) {
			cause, option := causeOfKernel(tc.request, fmt.Errorf("wrapped: %w", tc.errno), tc.lines)
			if cause != tc.cause || option != tc.option {
				t.Errorf("cause %q, option %q; want %q, %q", cause, option, tc.cause, tc.option)
			}
			err := tc.request.Failed(fmt.Errorf("prepare the file system: %w", &failure.Kernel{Call: "fsconfig", Lines: tc.lines, Err: os.NewSyscallError("fsconfig", tc.errno)}))
			e, ok := errors.AsType[*Error](err)
			if !ok || e.Cause != tc.cause || e.Option != tc.option || !errors.Is(err, tc.errno) {
				t.Errorf("as an error: %+v", e)
			}
			for _, line := range tc.lines {
				if want := strings.TrimPrefix(line, "e "); !strings.Contains(err.Error(), want) {
					t.Errorf("%q is missing in %v", want, err)
				}
			}
		})
	}
}

func TestKernelMessageIsMasked(t *testing.T) {
	r := Request{Source: "//srv/share", Target: "/t", FSType: "cifs", Sensitive: []string{"password=geheim,hunter2"}}
	err := r.Failed(&failure.Kernel{Call: "fsconfig", Err: unix.EINVAL, Lines: []string{"e cifs: Unknown parameter 'hunter2'", "i cifs: password=geheim"}})
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Cause != ErrBadOption || e.Option != masked || e.Kernel != "cifs: Unknown parameter '<masked>'; cifs: <masked>" {
		t.Errorf("err = %+v", e)
	}
	if text := fmt.Sprintf("%v %+v", err, e.Err); strings.Contains(text, "hunter2") || strings.Contains(text, "geheim") {
		t.Errorf("a secret shows: %s", text)
	}
}
