package image

import (
	"context"
	"time"
)

// Run implements [volume.RunningPlugin]: it removes what earlier processes have left, and unused
// images when they have been kept long enough.
func (p *Plugin) Run(ctx context.Context, _ func(source string)) error {
	if p.config.Runtime != nil {
		return nil
	}
	for {
		var old <-chan time.Time
		if next := p.collect(ctx); !next.IsZero() {
			old = time.After(time.Until(next))
		}
		select {
		case <-old:
		case <-p.unused:
		case <-ctx.Done():
			return nil
		}
	}
}

// collect removes what is over the budget, and returns when there is more to remove; zero: not
// before something changes. That it fails is no pod's failure.
func (p *Plugin) collect(ctx context.Context) (next time.Time) {
	next, err := p.store().Collect(ctx)
	if err != nil && ctx.Err() == nil {
		p.config.Logger.Warn("unused images are not removed", "error", err)
	}
	return next
}
