package table

// What asks the kernel or udev for one name only.
var (
	KernelNames = kernelNames
	UdevUUID    = udevUUID
	Ext4UUID    = ext4UUID
	XFSUUID     = xfsUUID
)
