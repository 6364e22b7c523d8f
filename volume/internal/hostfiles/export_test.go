package hostfiles

// AfterMaking has f called when a directory was made and nothing else is done.
func (o *Own) AfterMaking(f func(path string)) { o.made = f }
