package mount

import "fmt"

// Holder is a process that keeps a mount in use.
type Holder struct {
	PID int
	// Command is the process's name, as ps(1) shows it.
	Command string
	// How says by what: "working directory", "root directory", "open file
	// /mnt/a/x", "mapped file /mnt/a/lib.so", "mount below at /mnt/a/b" …
	How string
}

func (h Holder) String() string { return fmt.Sprintf("%s (%d): %s", h.Command, h.PID, h.How) }
