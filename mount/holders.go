package mount

import (
	"fmt"
	"strings"
)

// Holder is one user of a mount: a process, or the kernel itself.
type Holder struct {
	// PID is the process, by this process's /proc; 0 stands for the kernel, as
	// with a mount below.
	PID int
	// Command is the process's name, as ps(1) shows it; "kernel" for PID 0.
	Command string
	// How says by which means: "working directory /mnt/a", "root directory
	// /mnt/a", "program /mnt/a/bin/x", "open file /mnt/a/x", "mapped file
	// /mnt/a/lib.so", "mount below at /mnt/a/b", "swap file /mnt/a/s", "loop
	// device loop0 on /mnt/a/disk.img". Paths are as the process sees them.
	How string
}

func (h Holder) String() string { return fmt.Sprintf("%s (%d): %s", h.Command, h.PID, h.How) }

// heldBy lists holders in a sentence.
func heldBy(holders []Holder) string {
	var all []string
	for _, h := range holders {
		all = append(all, h.String())
	}
	return strings.Join(all, "; ")
}
