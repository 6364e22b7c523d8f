package mount

// KernelTable returns the table of this process's mount namespace.
func KernelTable() (Table, error) { panic("being written") }
