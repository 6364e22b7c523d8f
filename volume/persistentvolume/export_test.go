package persistentvolume

// For tests in which the process dies at a change of the disk.
type (
	Disk        = disk
	DurableDisk = durableDisk
)

var OpenRecordsOn = openRecords
