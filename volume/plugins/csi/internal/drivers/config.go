package drivers

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/csivolume"
)

// Config configures a [Set].
type Config struct {
	// Sockets has the sockets of drivers that do not register themselves, by the drivers' names.
	Sockets map[string]string
	// RegistryDir is where other drivers register themselves; empty: [Set.Discover] finds none.
	RegistryDir string
	// CallTimeout bounds each call; 0: two minutes, as in the kubelet.
	CallTimeout time.Duration
	// Dial connects to a driver's socket; nil: by a Unix socket.
	Dial func(ctx context.Context, socket string) (net.Conn, error)
	// Logger gets a line for a driver that appears or goes; nil: none.
	Logger *slog.Logger
}

// Complete checks the configuration, and returns it with its defaults. Names that no driver
// can have and paths that are not absolute are an *[volume.InvalidSpecError].
func (c Config) Complete() (Config, error) {
	for _, name := range slices.Sorted(maps.Keys(c.Sockets)) {
		if err := csivolume.CheckDriverName("Drivers", name); err != nil {
			return c, err
		}
		if !filepath.IsAbs(c.Sockets[name]) {
			return c, volume.Invalid("Drivers", "the socket of driver %s must be an absolute path: %q", name, c.Sockets[name])
		}
	}
	if c.RegistryDir != "" && !filepath.IsAbs(c.RegistryDir) {
		return c, volume.Invalid("RegistryDir", "must be an absolute path: %q", c.RegistryDir)
	}
	if c.CallTimeout < 0 {
		return c, volume.Invalid("CallTimeout", "times must not be negative")
	}
	c.CallTimeout = cmp.Or(c.CallTimeout, 2*time.Minute)
	if c.Dial == nil {
		c.Dial = dialUnix
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

func dialUnix(ctx context.Context, socket string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", socket)
}
