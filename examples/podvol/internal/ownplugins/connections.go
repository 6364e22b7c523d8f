package ownplugins

import (
	"context"
	"io"
	"sync"
)

// connections are those of one command.
type connections struct {
	mu  sync.Mutex
	all []io.Closer
}

type connectionsKey struct{}

// KeepConnections returns a context with which connections to drivers last until close is called.
// It ends as ctx does, and they do not: what a command has begun it undoes after an interrupt.
func KeepConnections(ctx context.Context) (_ context.Context, closeAll func()) {
	c := &connections{}
	return context.WithValue(ctx, connectionsKey{}, c), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, one := range c.all {
			_ = one.Close()
		}
	}
}

// keep has a plugin closed with the command, or with ctx if that is no command's.
func keep(ctx context.Context, plugin io.Closer) {
	c, ok := ctx.Value(connectionsKey{}).(*connections)
	if !ok {
		context.AfterFunc(ctx, func() { _ = plugin.Close() })
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, plugin)
}
