package persisted

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/volume/objects"
)

// A child that was forked and has not yet started its program has a copy of the lock's
// descriptor. It does not keep the lock, and closing twice stays an error.
func TestCloseBesideACopyOfTheDescriptor(t *testing.T) {
	dir := t.TempDir()
	r, err := Open(t.Context(), objects.NewStore(), dir)
	if err != nil {
		t.Fatal(err)
	}
	copied, err := unix.Dup(int(r.lock.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(copied)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if r, err = Open(ctx, objects.NewStore(), dir); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
