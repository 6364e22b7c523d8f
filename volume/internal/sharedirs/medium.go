package sharedirs

// Medium is where a base lies. It changes nothing but the advice of errors.
type Medium int

const (
	// Share is a share of an NFS server.
	Share Medium = iota
	// Disk is a directory of this node.
	Disk
)

// named has all errors of this package in err say what suits the medium.
func (m Medium) named(err error) error {
	each(err, func(e *Error) { e.On = m })
	return err
}

// each calls f with all errors of this package in err.
func each(err error, f func(*Error)) {
	if e, ok := err.(*Error); ok {
		f(e)
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		each(e.Unwrap(), f)
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			each(one, f)
		}
	}
}
