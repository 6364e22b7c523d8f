package release

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// asking counts looks, each of which waits until it is let go on.
type asking struct {
	sharedReads
	mu    sync.Mutex
	begun int
	goOn  chan struct{}
}

func (a *asking) read(ctx context.Context) (*usage, error) {
	a.mu.Lock()
	a.begun++
	n := a.begun
	a.mu.Unlock()
	select {
	case <-a.goOn:
		return &usage{users: make([]*user, n)}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ask returns the number of the look that answers.
func (a *asking) ask(ctx context.Context) <-chan int {
	answer := make(chan int, 1)
	go func() {
		all, err := a.share(ctx, a.read)
		if err != nil {
			answer <- -1
			return
		}
		answer <- len(all.users)
	}()
	synctest.Wait()
	return answer
}

// What was read before somebody asked answers him not; all who ask meanwhile
// share the next look.
func TestALookAnswersOnlyWhoAskedBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &asking{goOn: make(chan struct{})}
		first := a.ask(t.Context())
		var later []<-chan int
		for range 20 {
			later = append(later, a.ask(t.Context()))
		}
		if a.begun != 1 {
			t.Fatalf("%d looks at the same time", a.begun)
		}
		a.goOn <- struct{}{}
		if n := <-first; n != 1 {
			t.Errorf("the first is answered by look %d", n)
		}
		synctest.Wait()
		last := a.ask(t.Context())
		close(a.goOn)
		for i, answer := range later {
			if n := <-answer; n != 2 {
				t.Errorf("%d, who asked during look 1, is answered by %d", i, n)
			}
		}
		if n := <-last; n != 3 {
			t.Errorf("who asked during look 2 is answered by %d", n)
		}
	})
}

// Whoever gives up, be it the one who looks for others too, the rest is answered.
func TestALookThatWasGivenUpIsTakenByAnother(t *testing.T) {
	for name, looking := range map[string]bool{"before it has begun": false, "while it reads": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &asking{goOn: make(chan struct{})}
				first := a.ask(t.Context())
				ctx, cancel := context.WithCancel(t.Context())
				leader, other := a.ask(ctx), a.ask(t.Context())
				if looking {
					a.goOn <- struct{}{}
					<-first
					synctest.Wait()
				}
				cancel()
				if n := <-leader; n != -1 {
					t.Errorf("who gave up is answered by look %d", n)
				}
				synctest.Wait()
				close(a.goOn)
				if n := <-other; n < 2 {
					t.Errorf("the other is answered by look %d", n)
				}
			})
		})
	}
}

func TestALookThatIsNeverAnsweredHoldsUpNobodyForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l sharedReads
		stuck, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			_, _ = l.share(stuck, func(ctx context.Context) (*usage, error) { <-ctx.Done(); return nil, ctx.Err() })
		}()
		synctest.Wait()
		began := time.Now()
		want := errors.New("the API does not answer")
		_, err := l.share(t.Context(), func(context.Context) (*usage, error) { return nil, want })
		if took := time.Since(began); !errors.Is(err, want) || took != readPatience {
			t.Errorf("after %v: %v", took, err)
		}
	})
}
