package csi_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// A socket that is no driver's is told as such, and nothing was done.
func TestSocketThatIsNoDriver(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	b.kill()
	b.must(os.Remove(b.socket))
	serveNonsense(t, b.socket)
	err := b.setUp(pvSpec(), pod("u1"), volume.MounterArgs{})
	if wantUncertain(t, err, false); !errors.Is(err, csi.ErrUnreachable) {
		t.Errorf("%v", err)
	}
	b.wantNothing()
}

// serveNonsense has something at a socket that is no driver.
func serveNonsense(t *testing.T, socket string) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			conn.Close()
		}
	}()
}

// A driver is asked for its name; where there is none, the error says why, and what to do.
func TestAskName(t *testing.T) {
	ask := func(b *bench) error {
		name, err := csi.AskName(t.Context(), b.socket)
		if err == nil && name != driverName {
			t.Errorf("the driver's name is %q", name)
		}
		return err
	}
	b := newBench(t, everything(), csi.Config{})
	b.must(ask(b))
	for name, tc := range map[string]struct {
		prepare func(*bench)
		want    string
	}{
		"no socket": {func(b *bench) { b.kill(); b.must(os.RemoveAll(b.socket)) }, "no such file"},
		"a file":    {func(b *bench) { b.kill(); b.must(os.RemoveAll(b.socket), os.WriteFile(b.socket, nil, 0o600)) }, "is no socket"},
		"no driver": {func(b *bench) { b.kill(); b.must(os.RemoveAll(b.socket)); serveNonsense(t, b.socket) }, "speaks gRPC"},
		"everybody": {func(b *bench) { b.must(os.Chmod(b.socket, 0o777)) }, "everybody"},
		"no answer": {func(b *bench) {
			b.driver.Inject(csitest.Fault{Match: csitest.Method("GetPluginInfo"), Err: status.Error(codes.Unavailable, "not\nnow")})
		}, "not now"},
		"no name": {func(b *bench) { b.driver.Configure(func(c *csitest.Config) { c.Name = "../\nevil" }) }, "no name of a driver"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, everything(), csi.Config{})
			tc.prepare(b)
			err := ask(b)
			if !errors.Is(err, csi.ErrUnreachable) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), b.socket) ||
				!strings.Contains(err.Error(), "give its name") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v", err)
			}
		})
	}
}

// A stopped process's socket takes connections still. The error says that, and since when,
// whether gRPC's limit ends the wait or the caller's.
func TestStoppedDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := csi.New(csi.Config{Drivers: map[string]string{driverName: "/run/d.sock"}, Dial: func(context.Context, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, far) }()
			return near, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		since := time.Now()
		for _, limit := range []time.Duration{10 * time.Second, time.Minute, time.Minute} {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			err := p.Connect(ctx, driverName)
			cancel()
			want := "answered nothing since " + since.Add(10*time.Second).Format(time.DateTime) // as it was seen first
			if !errors.Is(err, csi.ErrUnreachable) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "hangs or is stopped") || strings.Contains(err.Error(), "speaks") {
				t.Errorf("within %v: %v; want %s", limit, err, want)
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// What only root may open is not away.
func TestSocketOfAnotherUser(t *testing.T) {
	p, err := csi.New(csi.Config{Drivers: map[string]string{driverName: "/run/d.sock"}, Dial: func(context.Context, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EACCES)}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Connect(t.Context(), driverName); !errors.Is(err, csi.ErrUnreachable) || !strings.Contains(err.Error(), "as root") || strings.Contains(err.Error(), "whether the driver runs") {
		t.Errorf("%v", err)
	}
}

// A driver that hangs is waited for as long as the caller wants.
func TestAskNameOfAHangingDriver(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("long enough")
	b.driver.Inject(csitest.Fault{Match: csitest.Method("GetPluginInfo"), Hook: func() { cancel(enough) }, Release: make(chan struct{})})
	if _, err := csi.AskName(ctx, b.socket); !errors.Is(err, csi.ErrUnreachable) || !errors.Is(err, enough) {
		t.Errorf("%v", err)
	}
}
