package cluster_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/podvol/podvol/volume"
)

// What waits for delivery when the client is closed is not delivered.
func TestWatchersHearNothingAfterClose(t *testing.T) {
	for way, config := range bothWays {
		t.Run(way, func(t *testing.T) {
			inWorld(t, config, func(t *testing.T, w *world) {
				for n := range 3 {
					w.create(configMap(fmt.Sprint("app-", n)))
				}
				entered, release := make(chan struct{}, 10), make(chan struct{})
				var calls atomic.Int32
				held := func(volume.ObjectRef) {
					calls.Add(1)
					entered <- struct{}{}
					<-release
				}
				w.Watch(ref("app-0"), held)
				w.WatchKind("ConfigMap", held)
				w.change("app-0", "new")
				w.change("app-1", "new")
				w.change("app-2", "new")
				synctest.Wait()
				closed := make(chan struct{})
				go func() {
					defer close(closed)
					w.Close()
				}()
				synctest.Wait()
				select {
				case <-closed:
					t.Error("closed while a watcher is called")
				default:
				}
				close(release)
				<-closed
				before := calls.Load()
				w.change("app-0", "newer")
				synctest.Wait()
				if n := calls.Load(); before == 0 || n != before {
					t.Errorf("%d calls before the client was closed, %d in the end", before, n)
				}
			})
		})
	}
}
