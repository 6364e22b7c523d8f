package csi

import (
	"context"

	"google.golang.org/grpc/connectivity"
)

// AwaitEnd waits until the driver's connection has ended.
func (p *Plugin) AwaitEnd(ctx context.Context, name string) error {
	d, err := p.drivers.Get(name)
	if err != nil {
		return err
	}
	if s := d.Current(); s != nil && !s.Conn.WaitForStateChange(ctx, connectivity.Ready) {
		return context.Cause(ctx)
	}
	return nil
}
