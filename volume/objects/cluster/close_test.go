package cluster_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects/cluster"
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

// Who waits for the first answer to a watch asks for itself when the last watcher
// leaves.
func TestALookUpOutlivesTheWatchItWaitsFor(t *testing.T) {
	inWorld(t, cluster.Config{Shared: []string{}}, func(t *testing.T, w *world) {
		w.create(configMap("app"))
		w.memory.SetHandler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		_, stop := w.count("app")
		began := time.Now()
		done := make(chan error, 1)
		go func() {
			_, err := w.Get(t.Context(), ref("app"))
			done <- err
		}()
		synctest.Wait()
		w.memory.SetHandler(w.api)
		stop()
		if err := <-done; err != nil || time.Since(began) > 0 {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}
