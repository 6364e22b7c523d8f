package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/podvol/podvol/util/testenv/noleak"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

func TestMain(m *testing.M) {
	testtool.Shorten()
	noleak.Main(m)
}

// start runs something until the end of the test.
func start(t *testing.T, name string, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
}

func startPart(t *testing.T, name string, args ...string) {
	t.Helper()
	start(t, name, func(ctx context.Context) error { return run(ctx, name, args) })
}

// dial returns a connection that begins with its first call.
func dial(t *testing.T, socket string) *grpc.ClientConn {
	t.Helper()
	connection, err := csitest.Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return connection
}

// The driver's flags are those of Kubernetes' manifests. The sidecars find its name, and say
// that it is ready.
func TestDriverAndItsSidecars(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	startPart(t, "csi-node-driver-registrar", "--v=5", "--csi-address="+socket, "--kubelet-registration-path=/there/s", "--plugin-registration-path="+dir)
	startPart(t, "hostpathplugin", "-v=5", "--endpoint=unix://"+socket, "--nodeid=n1", "--drivername=d", "--statedir="+filepath.Join(dir, "state"),
		"--maxvolumespernode=10", "--check-volume-lifecycle=true", "--accepted-mutable-parameter-names=a,b", "--enable-attach")
	driver := dial(t, socket)
	info, err := csi.NewNodeClient(driver).NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{}, grpc.WaitForReady(true))
	if err != nil || info.NodeId != "n1" || info.MaxVolumesPerNode != 10 || info.AccessibleTopology.GetSegments()[topologyKey] != "n1" {
		t.Errorf("%v, %v", info, err)
	}
	var told emptypb.Empty
	err = dial(t, filepath.Join(dir, "d-reg.sock")).Invoke(t.Context(), "/pluginregistration.Registration/GetInfo", &emptypb.Empty{}, &told, grpc.WaitForReady(true))
	if text := string(told.ProtoReflect().GetUnknown()); err != nil || !strings.Contains(text, "/there/s") {
		t.Errorf("the registrar tells %q, %v", text, err)
	}
	for code, driver := range map[int]*grpc.ClientConn{http.StatusOK: driver, http.StatusInternalServerError: dial(t, socket+"-none")} {
		answer := httptest.NewRecorder()
		readiness(driver).ServeHTTP(answer, httptest.NewRequest("GET", "/healthz", nil))
		if answer.Code != code {
			t.Errorf("the probe says %d, not %d", answer.Code, code)
		}
	}
}

// A caller of the socket reaches a driver that has connected to the address, whichever came first.
func TestProxy(t *testing.T) {
	callers, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	drivers, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	start(t, "proxy", func(ctx context.Context) error { return joinAll(ctx, callers, drivers) })
	connect := func(to net.Listener) net.Conn {
		c, err := net.Dial(to.Addr().Network(), to.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	early := connect(drivers)
	first, second := connect(callers), connect(callers)
	late := connect(drivers)
	for i, pair := range [][2]net.Conn{{first, early}, {second, late}} {
		for _, way := range [][2]net.Conn{pair, {pair[1], pair[0]}} {
			text, got := fmt.Sprintf("pair %d", i), make([]byte, 6)
			if _, err := io.WriteString(way[0], text); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(way[1], got); err != nil || string(got) != text {
				t.Errorf("%q has come as %q, %v", text, got, err)
			}
		}
		if err := pair[1].Close(); err != nil {
			t.Fatal(err)
		}
		if rest, err := io.ReadAll(pair[0]); len(rest) > 0 || err != nil {
			t.Errorf("after the driver's end: %q, %v", rest, err)
		}
	}
}

func TestUnknownPart(t *testing.T) {
	for _, args := range [][]string{{"other"}, {"hostpathplugin", "--other"}} {
		if err := run(t.Context(), args[0], args[1:]); err == nil {
			t.Errorf("%v runs", args)
		}
	}
}
