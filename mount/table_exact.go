package mount

// atExactly implements exactTable.
func (x *index) atExactly(target string) (Entry, bool, error) {
	e, ok, err := x.mountedAt(target)
	if err != nil {
		return kernelTable{}.atExactly(target)
	}
	return e, ok, nil
}

// atExactly implements exactTable.
func (t kernelTable) atExactly(target string) (Entry, bool, error) {
	entries, err := t.All()
	if err != nil {
		return Entry{}, false, err
	}
	e, ok := mountedAt(entries, target)
	return e, ok, nil
}
