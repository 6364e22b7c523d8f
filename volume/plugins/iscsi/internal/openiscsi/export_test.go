package openiscsi

// Replace gives an initiator another sysfs to write to, and other numbers of devices.
func (i *Initiator) Replace(number func(path string) (string, error), put func(path, value string) error) {
	i.number, i.put = number, put
}
