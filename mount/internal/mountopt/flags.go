package mountopt

// These are the MS_* flags of mount(2), which are part of Linux' interface and never change.
// They have their own names here, since package unix has them on Linux alone and options
// are read on every system.
const (
	msRdonly      uintptr = 0x1
	msNosuid      uintptr = 0x2
	msNodev       uintptr = 0x4
	msNoexec      uintptr = 0x8
	msSynchronous uintptr = 0x10
	msMandlock    uintptr = 0x40
	msDirsync     uintptr = 0x80
	msNosymfollow uintptr = 0x100
	msNoatime     uintptr = 0x400
	msNodiratime  uintptr = 0x800
	msRec         uintptr = 0x4000
	msSilent      uintptr = 0x8000
	msUnbindable  uintptr = 0x20000
	msPrivate     uintptr = 0x40000
	msSlave       uintptr = 0x80000
	msShared      uintptr = 0x100000
	msRelatime    uintptr = 0x200000
	msIVersion    uintptr = 0x800000
	msStrictatime uintptr = 0x1000000
	msLazytime    uintptr = 0x2000000
)
