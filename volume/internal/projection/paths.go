package projection

import "path"

// pathSet are the clean paths of files and where each comes from. Its zero
// value is ready.
type pathSet struct {
	origins map[string]string
	// below has a file's path for each directory that files are in.
	below map[string]string
}

// conflict returns the path of a file that p cannot go together with: p is a
// directory of that file, or the file is a directory of p.
func (s *pathSet) conflict(p string) (other string, conflicts bool) {
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

func (s *pathSet) add(p, origin string) {
	if s.origins == nil {
		s.origins, s.below = make(map[string]string), make(map[string]string)
	}
	s.origins[p] = origin
	for dir := path.Dir(p); dir != "."; dir = path.Dir(dir) {
		s.below[dir] = p
	}
}
