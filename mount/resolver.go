package mount

import (
	"context"
	"net/netip"
)

// Resolver looks up host names; [net.Resolver] is one. It must be safe for
// concurrent use.
type Resolver interface {
	// LookupNetIP returns the addresses of host, best first; network is "ip",
	// "ip4" or "ip6".
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}
