package selfattach

import v1 "k8s.io/api/core/v1"

// OpenAt is Open in another boot of the machine.
func OpenAt(c Config, boot string) (*Attacher, error) { return open(c, boot) }

// RecordPath is where a volume's record is.
func RecordPath(dir string, name v1.UniqueVolumeName) string { return records{dir}.path(name) }
