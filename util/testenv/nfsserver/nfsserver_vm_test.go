package nfsserver_test

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nfsserver"
	"github.com/podvol/podvol/util/testenv/vmtest"
)

// mountNFS mounts without any helper.
func mountNFS(t *testing.T, server, path, options string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount(server+":"+path, dir, "nfs", 0, "addr="+server+","+options); err != nil {
		return "", err
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir, nil
}

func mustMount(t *testing.T, server, path, options string) string {
	t.Helper()
	dir, err := mountNFS(t, server, path, options)
	if err != nil {
		t.Fatalf("mount %s:%s with %s: %v", server, path, options, err)
	}
	return dir
}

func wantFile(t *testing.T, file, content string) {
	t.Helper()
	if data, err := os.ReadFile(file); err != nil || string(data) != content {
		t.Errorf("%s has %q, %v; want %q", file, data, err, content)
	}
}

func TestServers(t *testing.T) {
	packages := nfsserver.Unpack(t)
	vmtest.Run(t, func(t *testing.T) {
		exports := []nfsserver.Export{{Path: "/data"}, {Path: "/more"}, {Path: "/denied", Denied: true}}
		one := nfsserver.Start(t, packages, nfsserver.Config{Name: "one", Exports: exports})
		two := nfsserver.Start(t, packages, nfsserver.Config{Name: "two", Exports: exports})
		three := nfsserver.Start(t, packages, nfsserver.Config{Name: "three", Kind: nfsserver.Ganesha, Exports: exports})
		one.Put("/data/who", "one")
		two.Put("/data/who", "two")
		three.Put("/data/who", "three")
		t.Run("one after the other, of one name", func(t *testing.T) {
			for range 2 {
				t.Run("", func(t *testing.T) {
					again := nfsserver.Start(t, packages, nfsserver.Config{Name: "again"})
					again.Put("/data/who", "again")
					wantFile(t, filepath.Join(mustMount(t, again.Address(), "/data", "vers=4.2"), "who"), "again")
				})
			}
		})
		t.Run("the machine's files", func(t *testing.T) { testFilesAreKept(t, packages) })
		t.Run("several at once", func(t *testing.T) {
			for _, version := range nfsserver.AllVersions() {
				options := "nolock,vers=" + version
				wantFile(t, filepath.Join(mustMount(t, one.Address(), "/data", options), "who"), "one")
				wantFile(t, filepath.Join(mustMount(t, two.Address(), "/data", options), "who"), "two")
				wantFile(t, filepath.Join(mustMount(t, three.Address(), "/data", options), "who"), "three")
			}
		})
		t.Run("dropped", func(t *testing.T) { testDropped(t, one, two) })
		t.Run("delayed", func(t *testing.T) { testDelayed(t, two) })
		for _, s := range []*nfsserver.Server{one, three} {
			t.Run(s.String(), func(t *testing.T) { testChanges(t, s) })
		}
	})
}

// testChanges changes a server in every way there is.
func testChanges(t *testing.T, s *nfsserver.Server) {
	if _, err := mountNFS(t, s.Address(), "/denied", "vers=4.2"); err == nil {
		t.Error("mounted what is denied")
	}
	dir := mustMount(t, s.Address(), "/data", "vers=4.2,soft,timeo=50,noac")
	read := func() error {
		_, err := os.ReadFile(filepath.Join(dir, "who"))
		return err
	}
	s.Restart()
	if err := read(); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	s.Unexport("/data")
	if err := read(); !errors.Is(err, unix.ESTALE) {
		t.Errorf("after the export was taken away: %v", err)
	}
	s.SetExports(nfsserver.Export{Path: "/data", ReadOnly: true}, nfsserver.Export{Path: "/more"})
	if err := read(); err != nil {
		t.Errorf("after it was there again: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("written to an export that is read-only now: %v", err)
	}
	s.Replace()
	if err := read(); !errors.Is(err, unix.ESTALE) {
		t.Errorf("after the server was replaced: %v", err)
	}
	s.Speak("4.1")
	if _, err := mountNFS(t, s.Address(), "/data", "vers=4.2"); err == nil {
		t.Error("mounted with a version that the server lacks")
	}
	mustMount(t, s.Address(), "/data", "vers=4.1")
	s.Stop()
	if err := dial(s.Address(), 5*time.Second); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a stopped server answers with %v", err)
	}
	s.Start() // so that what is mounted can be unmounted
}

func testDropped(t *testing.T, one, two *nfsserver.Server) {
	dir := mustMount(t, one.Address(), "/data", "vers=4.2,noac")
	wantFile(t, filepath.Join(dir, "who"), "one")
	one.Drop()
	for _, address := range []string{one.Address(), one.Address6()} {
		if err := dial(address, 2*time.Second); !os.IsTimeout(err) {
			t.Errorf("%s is not silent: %v", address, err)
		}
	}
	if err := dial(two.Address(), time.Minute); err != nil {
		t.Errorf("another server: %v", err)
	}
	one.Pass()
	if err := dial(one.Address(), time.Minute); err != nil {
		t.Error(err)
	}
	wantFile(t, filepath.Join(dir, "who"), "one")
}

func testDelayed(t *testing.T, s *nfsserver.Server) {
	const delay = 300 * time.Millisecond
	s.Delay(delay)
	for _, address := range []string{s.Address(), s.Address6()} {
		start := time.Now()
		if err := dial(address, time.Minute); err != nil || time.Since(start) < delay {
			t.Errorf("%s answered after %v: %v", address, time.Since(start), err)
		}
	}
	s.Delay(0)
}

func dial(address string, patience time.Duration) error {
	conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(netip.MustParseAddr(address), 2049).String(), patience)
	if err == nil {
		conn.Close()
	}
	return err
}

// testFilesAreKept has a server and the lock daemon in the machine itself, after
// which other tests find names as before.
func testFilesAreKept(t *testing.T, packages nfsserver.Packages) {
	read := func() map[string]string {
		files := map[string]string{}
		for _, name := range []string{"passwd", "group", "hosts", "services", "nsswitch.conf", "netconfig"} {
			data, err := os.ReadFile(filepath.Join("/etc", name))
			files[name] = fmt.Sprintf("%s%v", data, err)
		}
		return files
	}
	before := read()
	t.Run("while they run", func(t *testing.T) {
		nfsserver.Start(t, packages, nfsserver.Config{})
		nfsserver.Statd(t, packages)
		if maps.Equal(before, read()) {
			t.Error("nothing is changed")
		}
	})
	if diff := cmp.Diff(before, read()); diff != "" {
		t.Errorf("after their end (-before +after):\n%s", diff)
	}
}
