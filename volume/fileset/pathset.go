package fileset

import "path"

// PathSet are the clean paths of files that are to be published together, and
// where each comes from. Its zero value is ready. It must not be used
// concurrently.
type PathSet struct {
	origins map[string]string
	// below has a file's path for each directory that files are in.
	below map[string]string
}

// Origin returns where the file at p comes from, if the set has it.
func (s *PathSet) Origin(p string) (origin string, ok bool) {
	origin, ok = s.origins[p]
	return origin, ok
}

// Conflict returns the path of a file of the set that p cannot go together
// with: p is a directory of that file, or the file is a directory of p.
func (s *PathSet) Conflict(p string) (other string, conflicts bool) {
	if other, ok := s.below[p]; ok {
		return other, true
	}
	for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
		if _, ok := s.origins[dir]; ok {
			return dir, true
		}
	}
	return "", false
}

// Add adds the file at p. One that is there already gets a new origin.
func (s *PathSet) Add(p, origin string) {
	if s.origins == nil {
		s.origins, s.below = make(map[string]string), make(map[string]string)
	}
	s.origins[p] = origin
	for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
		s.below[dir] = p
	}
}
