package work

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/volume"
)

// What is heard of an object meanwhile, such as what was written before the
// failure, neither ends the pause nor takes its place; news of it does.
func TestHearingOfAnObjectDoesNotEndItsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var all []string
		q := NewQueue(4, new(Activity), nil, func(_ context.Context, _ volume.ObjectRef, look bool) error {
			all = append(all, fmt.Sprintf("%v look=%v", time.Since(start), look))
			if look && len(all) < 4 {
				return errors.New("broken")
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		q.Start(ctx)
		key := volume.NewObjectRef("PersistentVolume", "", "pv")
		q.Add(key)
		time.Sleep(4 * time.Millisecond)
		q.Hear(key)
		time.Sleep(16 * time.Millisecond) // it has failed again, after 10 ms
		q.Add(key)
		time.Sleep(time.Hour)
		cancel()
		q.Wait()
		want := []string{"0s look=true", "4ms look=false", "10ms look=true", "20ms look=true"}
		if !slices.Equal(all, want) {
			t.Errorf("it was worked on at %v, want %v", all, want)
		}
		if len(q.states) != 0 || q.activity.n != 0 {
			t.Errorf("%d keys are left, %d active", len(q.states), q.activity.n)
		}
	})
}

// A key is never worked on twice at the same time, and every addition is
// followed by a look, whoever is at it.
func TestAKeyIsWorkedOnByOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running, looks := 0, 0
		q := NewQueue(8, new(Activity), nil, func(_ context.Context, _ volume.ObjectRef, look bool) error {
			if running++; running != 1 {
				t.Errorf("%d at a time", running)
			}
			time.Sleep(time.Second)
			running--
			if look {
				looks++
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		q.Start(ctx)
		key := volume.NewObjectRef("PersistentVolume", "", "pv")
		for range 10 {
			q.Hear(key)
			time.Sleep(time.Second / 4)
			q.Add(key)
			time.Sleep(time.Second / 4)
		}
		time.Sleep(time.Minute)
		cancel()
		q.Wait()
		if looks < 4 {
			t.Errorf("%d looks", looks)
		}
		if len(q.states) != 0 || q.activity.n != 0 {
			t.Errorf("%d keys are left, %d active", len(q.states), q.activity.n)
		}
	})
}
