package election

import "time"

// WithWall has the wall's clock replaced.
func (c Config) WithWall(now func() time.Time) Config {
	c.wall = now
	return c
}
