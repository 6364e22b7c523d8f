package staged

// Die leaves an operation as the death of its process does.
func (o *Op) Die() { o.lock.Close() }
