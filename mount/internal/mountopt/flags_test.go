//go:build linux

package mountopt

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestFlagsAreTheKernels(t *testing.T) {
	for name, flag := range map[string][2]uintptr{
		"MS_RDONLY":      {msRdonly, unix.MS_RDONLY},
		"MS_NOSUID":      {msNosuid, unix.MS_NOSUID},
		"MS_NODEV":       {msNodev, unix.MS_NODEV},
		"MS_NOEXEC":      {msNoexec, unix.MS_NOEXEC},
		"MS_SYNCHRONOUS": {msSynchronous, unix.MS_SYNCHRONOUS},
		"MS_MANDLOCK":    {msMandlock, unix.MS_MANDLOCK},
		"MS_DIRSYNC":     {msDirsync, unix.MS_DIRSYNC},
		"MS_NOSYMFOLLOW": {msNosymfollow, unix.MS_NOSYMFOLLOW},
		"MS_NOATIME":     {msNoatime, unix.MS_NOATIME},
		"MS_NODIRATIME":  {msNodiratime, unix.MS_NODIRATIME},
		"MS_REC":         {msRec, unix.MS_REC},
		"MS_SILENT":      {msSilent, unix.MS_SILENT},
		"MS_UNBINDABLE":  {msUnbindable, unix.MS_UNBINDABLE},
		"MS_PRIVATE":     {msPrivate, unix.MS_PRIVATE},
		"MS_SLAVE":       {msSlave, unix.MS_SLAVE},
		"MS_SHARED":      {msShared, unix.MS_SHARED},
		"MS_RELATIME":    {msRelatime, unix.MS_RELATIME},
		"MS_I_VERSION":   {msIVersion, unix.MS_I_VERSION},
		"MS_STRICTATIME": {msStrictatime, unix.MS_STRICTATIME},
		"MS_LAZYTIME":    {msLazytime, unix.MS_LAZYTIME},
	} {
		if flag[0] != flag[1] {
			t.Errorf("%s is %#x here, and %#x in the kernel", name, flag[0], flag[1])
		}
	}
}
