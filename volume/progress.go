package volume

import "fmt"

// Progress is how far something is that takes long: changing the owner of many
// files, making a file system.
type Progress struct {
	// Doing says what is done, in words that follow "is": "setting the owner
	// of files".
	Doing string
	// Done counts what has been done, of Total; a Total of 0 is not known. The
	// unit is what Doing names.
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
