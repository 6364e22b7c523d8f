package nfs

import (
	"context"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// setUp is [podmount.SetUp] that asks no server that is known not to answer.
// What is mounted already is success, whatever its server does.
func (p *plugin) setUp(ctx context.Context, e export, request mount.Request, same func(mount.Entry) bool) (made bool, err error) {
	m := p.Host.GetMounter()
	return podmount.SetUpBy(ctx, m, request, same, func() error {
		return p.breaker.do(ctx, endpointOf(e, request.Options), func() error { return mountByOwnName(ctx, m, e, request) })
	})
}

// SourceHealth implements [volume.SourceHealthPlugin]: the server of the volume,
// as its PersistentVolume leads to it. To which of a server's services an inline
// volume leads may be its pod's choice or a policy's: where the policy has an
// entry for the server, it is the one in the worst trouble.
func (p *plugin) SourceHealth(spec *volume.Spec) (volume.SourceHealth, bool) {
	source, err := p.Source(spec)
	if err != nil {
		return volume.SourceHealth{}, false
	}
	e, err := parseExport(source)
	if err != nil {
		return volume.SourceHealth{}, false
	}
	if _, byPolicy := p.config.Inline.forServer(e.server); spec.PersistentVolume == nil && byPolicy {
		return p.breaker.worst(e.normal().server), true
	}
	options, err := pluginbase.Options(spec, false)
	if err != nil {
		return volume.SourceHealth{}, false
	}
	return p.breaker.health(endpointOf(e, options)), true
}
