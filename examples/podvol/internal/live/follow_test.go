package live

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/examples/podvol/internal/nodeserver"
	"github.com/podvol/podvol/mount/fakemount"
)

// told is a display that tells by what volumes are known.
type told chan error

func (s told) show(_ []nodeserver.Volume, unanswered error) error { s <- unanswered; return nil }
func (s told) silent(time.Time)                                   {}

// The test's time limit tells of what does not come.
func TestANodeThatHangsOrRefusesIsShownByTheRecords(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	goOn, asked, shown := make(chan struct{}), 0, make(told)
	refuses := errors.New("podvol run-node answers 503 Service Unavailable")
	c := Config{RootDir: t.TempDir(), Mounts: fakemount.New().Table(), later: time.Hour}
	c.watch = func(ctx context.Context, _ string, show func(map[string]nodeserver.Volume) error) error {
		select { // it hangs
		case <-goOn:
		case <-ctx.Done():
			return ctx.Err()
		}
		switch asked++; asked {
		case 1:
			if err := show(nil); err != nil {
				return err
			}
			return io.EOF // it ends
		default:
			return refuses
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- c.follow(ctx, shown) }()
	if why := <-shown; why != errNotYet {
		t.Errorf("while it hangs: %v", why)
	}
	goOn <- struct{}{}
	if why := <-shown; why != nil {
		t.Errorf("once it answers: %v", why)
	}
	if why := <-shown; why != nodeserver.ErrNoNode {
		t.Errorf("after its end: %v", why)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	go func() { ended <- c.follow(ctx, shown) }()
	close(goOn)
	for why := errNotYet; why.Error() != refuses.Error(); why = <-shown {
		if why != errNotYet {
			t.Fatalf("it refuses: %v", why)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// One that refused is asked again.
func TestANodeThatRefusesIsAskedAgain(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked := 0
	c := Config{RootDir: t.TempDir(), Mounts: fakemount.New().Table(), soon: time.Hour}
	c.watch = func(context.Context, string, func(map[string]nodeserver.Volume) error) error {
		if asked++; asked == 3 {
			cancel()
		}
		return errors.New("podvol run-node answers 503 Service Unavailable")
	}
	if err := c.follow(ctx, make(told)); err != nil || asked != 3 {
		t.Errorf("it was asked %d times: %v", asked, err)
	}
}

// With nothing to write it ends, too, once its reader has gone.
func TestNobodyReads(t *testing.T) {
	reader, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	ended := make(chan error, 1)
	go func() {
		ended <- Show(t.Context(), Config{RootDir: t.TempDir(), Mounts: fakemount.New().Table(), Out: out, Err: io.Discard, Format: "json"})
	}()
	reader.Close()
	if err := <-ended; !errors.Is(err, unix.EPIPE) {
		t.Error(err)
	}
}

// What cannot be shown ends it.
func TestABrokenDisplayEndsIt(t *testing.T) {
	broken := errors.New("the terminal is gone")
	c := Config{RootDir: t.TempDir(), Mounts: fakemount.New().Table()}
	for _, hangs := range []bool{true, false} {
		c.watch = func(ctx context.Context, _ string, show func(map[string]nodeserver.Volume) error) error {
			if hangs {
				<-ctx.Done()
				return ctx.Err()
			}
			return show(nil)
		}
		if err := c.follow(t.Context(), failing{broken}); !errors.Is(err, broken) {
			t.Errorf("hangs %v: %v", hangs, err)
		}
	}
}

type failing struct{ err error }

func (f failing) show([]nodeserver.Volume, error) error { return f.err }
func (failing) silent(time.Time)                        {}
