package drivers

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/podvol/podvol/util/tracing"
)

// Operation is a call of a driver that has ended: a sample of the kubelet's histogram
// csi_operations_seconds.
type Operation struct {
	// Driver is the driver's name. Method is the call's full name, such as
	// "/csi.v1.Node/NodeStageVolume". Code is the answer's, such as "OK".
	Driver, Method, Code string
	Took                 time.Duration
	// Migrated: the volume was translated from an in-tree source. It is false, as the kubelet's
	// is, where the call needs no spec: to unpublish, unstage or measure.
	Migrated bool
}

// migratedKey is the key of a call's Migrated in its context.
type migratedKey struct{}

// Subscribe calls f after each call of a driver, until stop is called. f must not block,
// and may be called concurrently, also once more while stop is called.
func (s *Set) Subscribe(f func(Operation)) (stop func()) {
	o := &s.observers
	key := &f
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = make(map[*func(Operation)]struct{})
	}
	o.all[key] = struct{}{}
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.all, key)
	}
}

// observers are the subscribers. The zero value has none.
type observers struct {
	mu  sync.Mutex
	all map[*func(Operation)]struct{}
}

func (o *observers) observe(done Operation) {
	o.mu.Lock()
	all := make([]func(Operation), 0, len(o.all))
	for f := range o.all {
		all = append(all, *f)
	}
	o.mu.Unlock()
	for _, f := range all {
		f(done)
	}
}

// measured tells of each call of the driver.
func (d *Driver) measured(ctx context.Context, method string, request, response any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	begin := time.Now()
	var err error
	_ = tracing.Step(ctx, method, func(ctx context.Context) error { // what the driver says of the error may hold anything
		if err = invoke(ctx, method, request, response, conn, options...); err != nil {
			return errors.New(status.Code(err).String())
		}
		return nil
	})
	migrated, _ := ctx.Value(migratedKey{}).(bool)
	d.set.observers.observe(Operation{Driver: d.Name, Method: method, Code: status.Code(err).String(), Took: time.Since(begin), Migrated: migrated})
	return err
}
