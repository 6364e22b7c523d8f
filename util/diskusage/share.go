package diskusage

// shareEntries gives entries of the top directory to another walk, if there is
// a worker for it. They are that walk's then. It opens the directory once more,
// since processors get in each other's way at what one descriptor and its
// duplicate have in common.
func (w *walk) shareEntries(entries []byte) bool {
	if !w.tree.begin() {
		return false
	}
	fd, err := openDir(w.top().fd, ".")
	if err != nil { // out of descriptors, for example: this one goes on alone

		w.tree.free.Add(1)
		return false
	}
	w.tree.share(frame{name: w.path(len(w.stack)), fd: fd, id: w.top().id}, entries)
	return true
}

// shareDirectories gives half of the pending directories to another walk, if
// there is a worker for it: of those nearest to the root, since most is likely
// to be below them.
func (w *walk) shareDirectories() {
	depth := w.toShare()
	if depth < 0 || !w.tree.begin() {
		return
	}
	f := &w.stack[depth]
	fd, err := openDir(f.fd, ".")
	if err != nil {

		w.tree.free.Add(1)
		return
	}
	half := (len(f.pending) + 1) / 2
	given := frame{name: w.path(depth + 1), fd: fd, id: f.id, pending: f.pending[:half:half]}
	f.pending = f.pending[half:]
	w.tree.share(given, nil)
}

// toShare finds the first directory with something pending, unless that is all
// that this walk has left; then it is -1.
func (w *walk) toShare() int {
	if w.tree.free.Load() <= 0 {
		return -1
	}
	for depth := range w.stack {
		f := &w.stack[depth]
		if f.fd < 0 || len(f.pending) == 0 {
			continue
		}
		if len(f.pending) == 1 && depth == len(w.stack)-1 {
			return -1
		}
		return depth
	}
	return -1
}
