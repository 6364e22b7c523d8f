package sharedirs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
)

// together calls f n times at once, with a base of its own each time, as other
// processes have.
func together(t *testing.T, dir string, n int, f func(i int, b *base)) {
	t.Helper()
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		b := openBaseAt(t, dir)
		b.kernel.noReplace = i%2 == 0 // some as on NFS
		all.Go(func() { <-start; f(i, b) })
	}
	close(start)
	all.Wait()
}

// Of volumes that want one path, one gets it.
func TestRaceForAPath(t *testing.T) {
	for round := range 20 {
		dir := t.TempDir()
		errs := make([]error, 16)
		together(t, dir, len(errs), func(i int, b *base) {
			errs[i] = b.make(context.Background(), wish("ns/data", fmt.Sprint("pv", i%4)))
		})
		winner := ""
		for i, err := range errs {
			occupied, refused := caused(err, ErrOccupied)
			switch {
			case err == nil && (winner == "" || winner == fmt.Sprint("pv", i%4)):
				winner = fmt.Sprint("pv", i%4)
			case err == nil:
				t.Errorf("round %d: both %s and pv%d got the path", round, winner, i%4)
			case !refused || occupied.Owner.Volume == "":
				t.Errorf("round %d: %v", round, err)
			}
		}
		b := openBaseAt(t, dir)
		mustRemove(t, b, "ns/data", winner)
		if got := tree(t, dir); got != "" {
			t.Errorf("left\n%s", got)
		}
		assertBookEmpty(t, b)
	}
}

// Volumes that would lie in one another: whichever comes first, never both.
func TestRaceToNest(t *testing.T) {
	paths := []string{"a", "a/b", "a/b/c", "a/x"}
	for round := range 20 {
		dir := t.TempDir()
		errs := make([]error, 16)
		together(t, dir, len(errs), func(i int, b *base) {
			errs[i] = b.make(context.Background(), wish(paths[i%4], fmt.Sprint("pv", i)))
		})
		var made []string
		for i, err := range errs {
			if err == nil {
				made = append(made, paths[i%4])
				continue
			}
			if !errors.Is(err, ErrNested) && !errors.Is(err, ErrOccupied) {
				t.Errorf("round %d: %s: %v", round, paths[i%4], err)
			}
		}
		for i, p := range made {
			for j, q := range made {
				if i != j && strings.HasPrefix(p+"/", q+"/") {
					t.Errorf("round %d: both %s and %s were made", round, p, q)
				}
			}
		}
		// Rarely all refuse one another. Then whoever tries again gets his path.
		if len(made) == 0 && openBaseAt(t, dir).make(context.Background(), wish("a/b/c", "pv")) != nil {
			t.Errorf("round %d: nothing was made", round)
		}
	}
}

// Volumes come and go beside one another, with the directories above them.
func TestRaceOfNeighbours(t *testing.T) {
	dir := t.TempDir()
	together(t, dir, 8, func(i int, b *base) {
		for range 30 {
			w := wish(fmt.Sprintf("ns/deep/data%d", i), fmt.Sprint("pv", i))
			if err := b.make(context.Background(), w); err != nil {
				t.Errorf("make: %v", err)
				return
			}
			if err := os.WriteFile(b.path(w.Path+"/file"), nil, 0o600); err != nil {
				t.Errorf("the volume is not where it was made: %v", err)
			}
			if err := b.remove(context.Background(), w.Path, w.Owner, Delete); err != nil {
				t.Errorf("remove: %v", err)
				return
			}
		}
	})
	if got := tree(t, dir); got != "" {
		t.Errorf("left\n%s", got)
	}
	assertBookEmpty(t, openBaseAt(t, dir))
}
