package reservation_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume/index"
	"github.com/podvol/podvol/volume/persistentvolume/internal/reservation"
)

// Claims, operations and writers that want the same few volumes at the same time: the data
// of a volume is one's at a time, its object too, and in the end all is free.
func TestNothingIsInTwoHandsAtOnce(t *testing.T) {
	const workers, rounds, volumes = 4, 300, 3
	pool := pvbuild.Pool(volumes)
	x := index.New(pool...)
	table, _ := newTable(x)
	data, object := make(map[string]*atomic.Int32), make(map[string]*atomic.Int32)
	for _, pv := range pool {
		data[pv.Name], object[pv.Name] = new(atomic.Int32), new(atomic.Int32)
	}
	alone := func(in map[string]*atomic.Int32, name string, e *reservation.Entry) {
		if n := in[name].Add(1); n != 1 {
			t.Errorf("%s is in %d hands", name, n)
		}
		in[name].Add(-1)
		e.Forget()
	}
	var wg sync.WaitGroup
	for i := range workers {
		name := pool[i%volumes].Name
		wg.Go(func() {
			for range rounds {
				claim := pvbuild.NewClaim(string(rune('a'+i)), "1Gi", pvbuild.OfClass("pool"))
				if e, err := table.Reserve(index.Wanted{Claim: claim}); err == nil {
					alone(data, e.Volume().Name, e)
				}
			}
		})
		wg.Go(func() {
			for range rounds {
				if e, ok := table.ReserveStorage(name, true, volume.NewObjectRef("PersistentVolume", "", name)); ok {
					alone(data, name, e)
				}
			}
		})
		wg.Go(func() {
			for range rounds {
				e, err := table.ReserveWriting(t.Context(), name)
				if err != nil {
					t.Error(err)
					return
				}
				alone(object, name, e)
			}
		})
		wg.Go(func() {
			for range rounds {
				if e, ok := table.TryWriting(name); ok {
					alone(object, name, e)
				}
			}
		})
	}
	wg.Wait()
	for _, pv := range pool {
		if _, free := x.Free(pv.Name); !free {
			t.Errorf("%s is still held", pv.Name)
		}
		if turn, ok := table.TryWriting(pv.Name); !ok {
			t.Errorf("%s is still written", pv.Name)
		} else {
			turn.Forget()
		}
	}
}
