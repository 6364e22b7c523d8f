package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/nfsserver"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/util/testenv/vmtest"
)

// testHosts is a resolver that knows what no DNS does.
type testHosts map[string]string

func (h testHosts) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	a, err := netip.ParseAddr(h[host])
	if err != nil {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return []netip.Addr{a}, nil
}

// nfsClient mounts NFS with no helper anywhere, and no mount(8) either.
type nfsClient struct {
	*Mounter
	log *bytes.Buffer
}

func newNFSClient() nfsClient {
	var log bytes.Buffer
	return nfsClient{New(Config{
		MountCommand: "no-such-mount-command", HelperDirs: []string{"/nonexistent"},
		Resolver: testHosts{"files.test": "127.0.0.1", "files6.test": "::1", "void.test": "127.0.0.3"},
		Logger:   slog.New(slog.NewJSONHandler(&log, nil)),
	}), &log}
}

// mounted mounts, checks that the file is there, that the table has the
// version, and that the log says what was tried; it returns what the table says.
func (c nfsClient) mounted(t *testing.T, r mount.Request, version string, refused int) mount.Entry {
	t.Helper()
	r.Target = t.TempDir()
	c.log.Reset()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.MountContext(ctx, r); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Unmount(r.Target); err != nil {
			t.Error(err)
		}
	})
	entry := entryOf(t, c, r.Target)
	if got, ok := entry.Option("vers"); !ok || got != version || entry.Source != r.Source {
		t.Errorf("the table says %+v, want version %s", entry, version)
	}
	var said struct {
		Level, Msg, Version, Asked, Address string
		Refused                             []string
	}
	if err := json.Unmarshal(c.log.Bytes(), &said); err != nil {
		t.Fatalf("log %q: %v", c.log, err)
	}
	if said.Level != "INFO" || said.Msg != "mounted" || said.Version != version || len(said.Refused) != refused {
		t.Errorf("the log says %+v, want version %s after %d others", said, version, refused)
	}
	if data, err := os.ReadFile(filepath.Join(r.Target, "hello")); err != nil || string(data) != "hello" {
		t.Errorf("read %q, %v", data, err)
	}
	return entry
}

// fails expects a cause, at once and for certain, and nothing mounted.
func (c nfsClient) fails(t *testing.T, r mount.Request, cause mount.Cause) *mount.Error {
	t.Helper()
	r.Target = t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := c.MountContext(ctx, r)
	e, ok := errors.AsType[*mount.Error](err)
	if !ok || e.Cause != cause || e.Uncertain || e.Command != "" {
		t.Fatalf("%s: %#v\n%v\nwant %v", r, e, err, cause)
	}
	if e.Advice() == "" && cause != mount.ErrNeedsCommand {
		t.Errorf("no advice: %v", err)
	}
	if points, err := c.IsMountPoint(r.Target); err != nil || points {
		t.Errorf("mounted all the same: %v, %v", points, err)
	}
	return e
}

func entryOf(t *testing.T, m mount.Interface, target string) mount.Entry {
	t.Helper()
	entry, ok, err := table.Of(m).At(target)
	if err != nil || !ok {
		t.Fatalf("%s is not mounted: %v", target, err)
	}
	return entry
}

func nfsRequest(source string, options ...string) mount.Request {
	return mount.Request{Source: source, FSType: "nfs", Options: options}
}

// TestNFSWithoutHelper mounts what the kernel's own server exports.
func TestNFSWithoutHelper(t *testing.T) {
	packages := nfsserver.Unpack(t)
	vmtest.Run(t, func(t *testing.T) {
		s := nfsserver.Start(t, packages, nfsserver.Config{Exports: []nfsserver.Export{{Path: "/data"}, {Path: "/denied", Denied: true}}})
		s.Put("/data/hello", "hello")
		c := newNFSClient()
		stopStatd := nfsserver.Statd(t, packages)
		t.Run("versions", func(t *testing.T) { testNFSVersions(t, c) })
		t.Run("options", func(t *testing.T) { testNFSOptions(t, s, c) })
		t.Run("kernels without fsopen", func(t *testing.T) {
			old := newNFSClient()
			old.api = lackingCalls(unix.ENOSYS, "fsopen")
			old.mounted(t, nfsRequest("127.0.0.1:/data", "ro"), "4.2", 0)
			old.mounted(t, nfsRequest("[::1]:/data", "vers=3"), "3", 0)
			old.fails(t, nfsRequest("127.0.0.1:/data/nothing"), mount.ErrNoSuchExport)
		})
		t.Run("refusals", func(t *testing.T) { testNFSRefusals(t, c) })
		t.Run("a server that falls silent", func(t *testing.T) { testNFSGivenUp(t, c) })
		stopStatd()
		t.Run("locks", func(t *testing.T) { testNFSWithoutStatd(t, c) })
		t.Run("fallback", func(t *testing.T) { testNFSFallback(t, s, c, packages) })
		s.Stop()
		t.Run("no server", func(t *testing.T) {
			c.fails(t, nfsRequest("127.0.0.1:/data"), mount.ErrConnectionRefused)
			c.fails(t, nfsRequest("[::1]:/data", "vers=4.1"), mount.ErrConnectionRefused)
		})
	})
}

func testNFSVersions(t *testing.T, c nfsClient) {
	for _, source := range []string{"127.0.0.1:/data", "[::1]:/data"} {
		for asked, version := range map[string]string{"fg": "4.2", "vers=4.2": "4.2", "nfsvers=4.1": "4.1", "v4.0": "4.0", "vers=4": "4.2", "vers=3": "3"} {
			t.Run(source+" "+asked, func(t *testing.T) { c.mounted(t, nfsRequest(source, asked), version, 0) })
		}
	}
	for _, source := range []string{"files.test:/data", "files6.test:/data"} {
		t.Run(source, func(t *testing.T) {
			c.mounted(t, nfsRequest(source), "4.2", 0)
			c.mounted(t, nfsRequest(source, "vers=3"), "3", 0)
		})
	}
	t.Run("nfs4", func(t *testing.T) {
		r := nfsRequest("127.0.0.1:/data")
		r.FSType = "nfs4"
		c.mounted(t, r, "4.2", 0)
	})
}

func testNFSOptions(t *testing.T, s *nfsserver.Server, c nfsClient) {
	entry := c.mounted(t, nfsRequest("files.test:/data", "soft,timeo=50,retrans=3", "noexec", "nosuid", "_netdev", "port=2049"), "4.2", 0)
	all := slices.Concat(entry.Options, entry.SuperOptions)
	for _, want := range []string{"soft", "timeo=50", "retrans=3", "noexec", "nosuid", "proto=tcp", "addr=127.0.0.1", "clientaddr=127.0.0.1"} {
		if !slices.Contains(all, want) {
			t.Errorf("%s is not among %q", want, all)
		}
	}
	// Read-only and writable mounts of one export do not disturb each other.
	readOnly := c.mounted(t, nfsRequest("files.test:/data", "ro"), "4.2", 0)
	if err := os.WriteFile(filepath.Join(readOnly.Target, "new"), nil, 0o644); err == nil || !readOnly.ReadOnly() {
		t.Errorf("written through %+v", readOnly)
	}
	writable := c.mounted(t, nfsRequest("files.test:/data"), "4.2", 0)
	testtool.Must(t, os.WriteFile(filepath.Join(writable.Target, "new"), []byte("data"), 0o644))
	if data, err := os.ReadFile(s.Path("data/new")); err != nil || string(data) != "data" {
		t.Errorf("the server has %q, %v", data, err)
	}
	three := c.mounted(t, nfsRequest("127.0.0.1:/data", "vers=3", "nolock", "proto=tcp", "mountproto=udp"), "3", 0)
	for _, want := range []string{"local_lock=all", "mountproto=udp", "mountport=20048"} {
		if !slices.Contains(three.SuperOptions, want) {
			t.Errorf("%s is not among %q", want, three.SuperOptions)
		}
	}
}

func testNFSRefusals(t *testing.T, c nfsClient) {
	tests := map[string]struct {
		request mount.Request
		cause   mount.Cause
	}{
		"no such path, any version": {nfsRequest("127.0.0.1:/data/nothing"), mount.ErrNoSuchExport},
		"no such path, 4.2":         {nfsRequest("127.0.0.1:/data/nothing", "vers=4.2"), mount.ErrNoSuchExport},
		"no such path, 3":           {nfsRequest("127.0.0.1:/data/nothing", "vers=3"), mount.ErrNoSuchExport},
		"no such export, 4.2":       {nfsRequest("127.0.0.1:/nothing", "vers=4.2"), mount.ErrNoSuchExport},
		"not for us, any version":   {nfsRequest("127.0.0.1:/denied"), mount.ErrAccessDenied},
		"not for us, 3":             {nfsRequest("127.0.0.1:/denied", "vers=3"), mount.ErrAccessDenied},
		"an unknown name":           {nfsRequest("nowhere.test:/data"), mount.ErrNameResolution},
		"nothing listens":           {nfsRequest("127.0.0.1:/data", "port=2050", "vers=4.2"), mount.ErrConnectionRefused},
		"no rpcbind":                {nfsRequest("void.test:/data", "port=2050", "vers=4"), mount.ErrConnectionRefused},
		"a version of the future":   {nfsRequest("127.0.0.1:/data", "vers=4.9"), mount.ErrVersionUnsupported},
		"version 2":                 {nfsRequest("127.0.0.1:/data", "vers=2"), mount.ErrVersionUnsupported},
		"no source":                 {nfsRequest("/dev/sda1"), mount.ErrBadOption},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { c.fails(t, test.request, test.cause) })
	}
	t.Run("not exported at all", func(t *testing.T) {
		e := c.fails(t, nfsRequest("127.0.0.1:/nothing"), mount.ErrAccessDenied)
		if !errors.Is(e, mount.ErrNoSuchExport) || !strings.Contains(e.Advice(), "showmount") {
			t.Errorf("not both causes: %v", e)
		}
	})
	t.Run("an unknown option", func(t *testing.T) {
		e := c.fails(t, nfsRequest("127.0.0.1:/data", "frobnicate=1"), mount.ErrBadOption)
		if !strings.Contains(e.Option, "frobnicate") || !strings.Contains(e.Kernel, "frobnicate") {
			t.Errorf("option %q, the kernel: %q", e.Option, e.Kernel)
		}
	})
	t.Run("a value out of range", func(t *testing.T) {
		e := c.fails(t, nfsRequest("127.0.0.1:/data", "nconnect=99"), mount.ErrBadOption)
		if !strings.Contains(e.Option, "nconnect") || e.Kernel == "" {
			t.Errorf("option %q, the kernel: %q", e.Option, e.Kernel)
		}
	})
	t.Run("an option of ours", func(t *testing.T) {
		if e := c.fails(t, nfsRequest("127.0.0.1:/data", "mountport=x"), mount.ErrBadOption); e.Option != "mountport" {
			t.Errorf("option %q", e.Option)
		}
	})
	t.Run("Kerberos", func(t *testing.T) {
		alone := New(Config{Via: ViaSystemCalls})
		e := nfsClient{alone, c.log}.fails(t, nfsRequest("127.0.0.1:/data", "sec=krb5p"), mount.ErrNeedsCommand)
		if !strings.Contains(e.Error(), "Kerberos") {
			t.Error(e)
		}
		r := nfsRequest("127.0.0.1:/data", "sec=krb5p")
		r.Target = t.TempDir()
		if err := c.MountContext(t.Context(), r); !errors.Is(err, mount.ErrHelperMissing) {
			t.Errorf("with mount(8): %v", err)
		}
	})
}

// testNFSGivenUp mounts through a proxy that lets the first connection pass,
// that of the look before the mount, and holds the kernel's.
func testNFSGivenUp(t *testing.T, c nfsClient) {
	port, release := holdingProxy(t, "127.0.0.1:2049")
	target := t.TempDir()
	r := nfsRequest("127.0.0.1:/data", "vers=4.2", "port="+port)
	r.Target = target
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	start := time.Now()
	err := c.MountContext(ctx, r)
	e, ok := errors.AsType[*mount.Error](err)
	if !ok || e.Cause != mount.ErrTimedOut || e.Uncertain || time.Since(start) > 30*time.Second {
		t.Fatalf("%v after %v", err, time.Since(start))
	}
	release()
	// The next one for this target waits for the end of that given up.
	direct := nfsRequest("127.0.0.1:/data", "vers=4.2")
	direct.Target = target
	testtool.Must(t, c.MountContext(t.Context(), direct))
	testtool.Must(t, c.Unmount(target))
	if mounted, err := c.IsMountPoint(target); err != nil || mounted {
		t.Errorf("what was given up has appeared: %v, %v", mounted, err)
	}
}

// holdingProxy passes its first connection on at once and the others after
// release.
func holdingProxy(t *testing.T, to string) (port string, release func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testtool.Must(t, err)
	t.Cleanup(func() { listener.Close() })
	released := make(chan struct{})
	go func() {
		for first := true; ; first = false {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if !first {
					<-released
				}
				server, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer server.Close()
				go io.Copy(server, conn)
				io.Copy(conn, server)
			}()
		}
	}()
	_, port, _ = net.SplitHostPort(listener.Addr().String())
	return port, sync.OnceFunc(func() { close(released) })
}

func testNFSWithoutStatd(t *testing.T, c nfsClient) {
	e := c.fails(t, nfsRequest("127.0.0.1:/data", "vers=3"), mount.ErrNoLockDaemon)
	if !strings.Contains(e.Advice(), "nolock") {
		t.Errorf("advice: %s", e.Advice())
	}
	c.fails(t, nfsRequest("127.0.0.1:/data", "vers=3", "local_lock=flock"), mount.ErrNoLockDaemon)
	entry := c.mounted(t, nfsRequest("127.0.0.1:/data", "vers=3", "nolock"), "3", 0)
	if lock, _ := entry.Option("local_lock"); lock != "all" {
		t.Errorf("nolock shows as %q", entry.SuperOptions)
	}
	c.mounted(t, nfsRequest("127.0.0.1:/data", "vers=3", "local_lock=all"), "3", 0)
	c.mounted(t, nfsRequest("127.0.0.1:/data"), "4.2", 0)
}

func testNFSFallback(t *testing.T, s *nfsserver.Server, c nfsClient, packages nfsserver.Packages) {
	s.Speak("3", "4.0", "4.1")
	c.mounted(t, nfsRequest("127.0.0.1:/data"), "4.1", 1)
	c.fails(t, nfsRequest("127.0.0.1:/data", "vers=4.2"), mount.ErrVersionUnsupported)
	s.Speak("3", "4.0")
	c.mounted(t, nfsRequest("127.0.0.1:/data"), "4.0", 2)
	old := newNFSClient()
	old.api = lackingCalls(unix.ENOSYS, "fsopen")
	old.mounted(t, nfsRequest("127.0.0.1:/data"), "4.0", 2)
	s.Speak("3")
	c.fails(t, nfsRequest("127.0.0.1:/data"), mount.ErrNoLockDaemon) // rather than locks that are silently local
	c.mounted(t, nfsRequest("127.0.0.1:/data", "nolock"), "3", 1)
	c.fails(t, nfsRequest("127.0.0.1:/data", "vers=4"), mount.ErrVersionUnsupported)
	stop := nfsserver.Statd(t, packages)
	c.mounted(t, nfsRequest("files6.test:/data"), "3", 1)
	stop()
	s.Speak("4.0", "4.1", "4.2")
	c.fails(t, nfsRequest("127.0.0.1:/data", "vers=3", "nolock"), mount.ErrVersionUnsupported)
}
