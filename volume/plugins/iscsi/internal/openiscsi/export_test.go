package openiscsi

import "context"

// Replace gives an initiator another sysfs to write to, and other numbers of devices.
func (i *Initiator) Replace(number func(path string) (string, error), put func(path, value string) error) {
	i.number, i.put = number, put
}

// ReplaceOpen gives an initiator another way to open a disk that nothing else has.
func (i *Initiator) ReplaceOpen(open func(path string) (int, error)) { i.open = open }

// ReplaceLookup gives an initiator other addresses of hosts.
func (i *Initiator) ReplaceLookup(lookup func(ctx context.Context, host string) ([]string, error)) {
	i.lookup = lookup
}
