package runroot

import (
	"os"
	"path/filepath"
)

// RemoveMarker leaves the directory as a run does that was killed before it made the marker.
func (r *Root) RemoveMarker() error { return os.Remove(filepath.Join(r.Path(), Marker)) }
