package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/podvol/podvol/volume/internal/following"
)

// The reason of a long wait for informers is logged after a while, and then now
// and again. While an API cannot be reached, client-go is silent for long.
const (
	firstWord  = 5 * time.Second
	nextWord   = time.Minute
	askingTime = 10 * time.Second // a server that does not answer is told so after that
)

// WaitForSync returns once the informers of all shared kinds have synced. If ctx
// ends first, the error has the cause and the kinds that have not synced. While
// it waits, it logs to [Config].Logger after five seconds, and then every minute:
// the missing kinds, and the API server's answer to a request for its version.
func (c *Client) WaitForSync(ctx context.Context) error {
	telling, stop := context.WithCancel(ctx)
	told := make(chan struct{})
	go func() {
		defer close(told)
		c.tellOfWaiting(telling)
	}()
	defer func() {
		stop()
		<-told
	}()
	for _, kind := range slices.Sorted(maps.Keys(c.shared)) {
		select {
		case <-c.shared[kind].synced:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", c.shared[kind].notSynced(), context.Cause(ctx))
		}
	}
	return nil
}

// tellOfWaiting logs until ctx ends.
func (c *Client) tellOfWaiting(ctx context.Context) {
	next := time.NewTimer(firstWord)
	defer next.Stop()
	for {
		select {
		case <-next.C:
			answer := c.answer(ctx)
			if kinds := c.unsynced(); ctx.Err() == nil && len(kinds) > 0 {
				c.log.Warn("still waiting for the first lists of objects", "kinds", kinds, "answer", answer)
			}
			next.Reset(nextWord)
		case <-ctx.Done():
			return
		}
	}
}

func (c *Client) unsynced() (kinds []string) {
	for _, kind := range slices.Sorted(maps.Keys(c.shared)) {
		select {
		case <-c.shared[kind].synced:
		default:
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// answer is the result of one plain request, which needs hardly any right.
func (c *Client) answer(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, askingTime)
	defer cancel()
	version, err := following.ServerVersion(ctx, c.clientset.Discovery())
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("the API server answers, and is %s; were the informers started, and may this identity list and watch these kinds?", version.GitVersion)
}
