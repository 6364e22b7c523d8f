package csi

import (
	"context"

	"google.golang.org/grpc/connectivity"
)

// AwaitEnd waits until the driver's connection has ended.
func (p *Plugin) AwaitEnd(ctx context.Context, name string) error {
	d, err := p.drivers.get(name)
	if err != nil {
		return err
	}
	if s := d.current(); s != nil && !s.conn.WaitForStateChange(ctx, connectivity.Ready) {
		return context.Cause(ctx)
	}
	return nil
}
