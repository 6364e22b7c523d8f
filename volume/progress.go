package volume

import "fmt"

// Progress is the progress of a long task, such as a change of the owner of many
// files, or the making of a file system.
type Progress struct {
	// Doing names the task, in words that follow "is": "setting the owner of
	// files".
	Doing string
	// Done is the finished part of Total; a Total of 0 means unknown. Doing names
	// the unit.
	Done, Total int64
}

// String returns a line for people, such as "setting the owner of files: 300
// of 1000".
func (p Progress) String() string {
	switch {
	case p.Total > 0:
		return fmt.Sprintf("%s: %d of %d", p.Doing, p.Done, p.Total)
	case p.Done > 0:
		return fmt.Sprintf("%s: %d", p.Doing, p.Done)
	}
	return p.Doing
}
