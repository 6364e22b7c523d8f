package nfsserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Config says what a server is like.
type Config struct {
	// Kind is the software; the zero value is the kernel's own server.
	Kind Kind
	// Name is the server's host name, of at most 8 letters and digits. A server
	// with a name has a network, a mount table and a host name of its own. The
	// one without a name, of which there can be one, lives in the machine itself,
	// at 127.0.0.1 and ::1.
	Name string
	// Versions are those it speaks, of "3", "4.0", "4.1" and "4.2"; nil means all.
	Versions []string
	// Exports are what it exports; nil means "/data" with nothing special.
	Exports []Export
}

// Export is one directory that a server exports.
type Export struct {
	// Path is the path by which clients mount it, below the server's root. The
	// directory is made if it is missing.
	Path string
	// ReadOnly refuses what clients would write; RootSquash makes their root
	// nobody.
	ReadOnly, RootSquash bool
	// Denied exports it to a client that does not exist, only.
	Denied bool
	// Security are the flavours, such as "krb5"; nil means "sys". There is no
	// Kerberos in the machine: an export with that alone refuses everybody.
	Security []string
}

// Kind is a server's software.
type Kind int

const (
	// Kernel is the NFS server of the Linux kernel with the daemons of
	// nfs-utils.
	Kernel Kind = iota
	// Ganesha is nfs-ganesha, a server in user space.
	Ganesha
)

// String is the software's name.
func (k Kind) String() string {
	switch k {
	case Kernel:
		return "nfsd"
	case Ganesha:
		return "ganesha"
	}
	return fmt.Sprintf("Kind(%d)", int(k))
}

// Server is an NFS server of one test. Its methods end the test if they fail,
// so they are for the test's own goroutine; one at a time.
type Server struct {
	t        testing.TB
	packages Packages
	config   Config
	at       place
	root     string
	wire     *network // nil in the machine itself
	backend  backend
	running  bool
	// ids are the numbers that file handles of an export have; all are new after
	// [Server.Replace].
	ids    map[string]int
	lastID int
}

// backend is the software of one server. It goes to the server's place itself.
type backend interface {
	// prepare starts what runs beside the server, once.
	prepare(ctx context.Context) error
	// export has the exports take effect, whether the server runs or not.
	export(ctx context.Context) error
	start(ctx context.Context) error
	stop() error
}

// Start starts a server in a machine of package vmtest, whose own files (in
// /var/lib/nfs and /run, and until the test ends in /etc) are its to change. It
// ends with the test, which must have unmounted by then.
func Start(t testing.TB, p Packages, c Config) *Server {
	t.Helper()
	s := &Server{t: t, packages: p, config: c, ids: map[string]int{}}
	if s.config.Versions == nil {
		s.config.Versions = AllVersions()
	}
	if s.config.Exports == nil {
		s.config.Exports = []Export{{Path: "/data"}}
	}
	s.must("start", s.begin(t.Context()))
	return s
}

// AllVersions are the versions of NFS that a server may speak.
func AllVersions() []string { return []string{"3", "4.0", "4.1", "4.2"} }

func (s *Server) begin(ctx context.Context) (err error) {
	if err := s.makeRoot(); err != nil {
		return err
	}
	hostname := "localhost"
	if s.config.Name != "" {
		hostname = s.config.Name
		if s.at, s.wire, err = newNode(s.t, hostname); err != nil {
			return err
		}
	}
	if err := s.packages.configure(s.t, s.at, hostname); err != nil {
		return err
	}
	switch s.config.Kind {
	case Kernel:
		s.backend = &kernelServer{s}
	case Ganesha:
		s.backend = &ganesha{s: s}
	default:
		return fmt.Errorf("there is no server of %v", s.config.Kind)
	}
	if _, err := startDaemon(s.t, s.at, s.packages, listens(111), "rpcbind", "-f"); err != nil {
		return err
	}
	if err := s.makeExports(); err != nil {
		return err
	}
	if err := s.backend.prepare(ctx); err != nil {
		return err
	}
	s.t.Cleanup(s.Stop)
	return s.start(ctx)
}

func (s *Server) must(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("NFS server %s (%v): %s: %v", s.config.Name, s.config.Kind, what, err)
	}
}

// makeRoot mounts a tmpfs of the server's own, seen at every place.
func (s *Server) makeRoot() error {
	var err error
	if s.root, err = os.MkdirTemp("", "nfsserver-"); err != nil { // a test's own has its name, of whatever characters
		return err
	}
	s.t.Cleanup(func() { os.Remove(s.root) })
	if err := unix.Mount("exported", s.root, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount %s: %w", s.root, err)
	}
	s.t.Cleanup(func() {
		if err := unix.Unmount(s.root, unix.MNT_DETACH); err != nil {
			s.t.Errorf("unmount %s: %v", s.root, err)
		}
	})
	return nil
}

// exportID is an export's number, which no other ever has.
func (s *Server) exportID(path string) int {
	if s.ids[path] == 0 {
		s.lastID++
		s.ids[path] = s.lastID
	}
	return s.ids[path]
}

func (s *Server) makeExports() error {
	for _, e := range s.config.Exports {
		if err := os.MkdirAll(s.Path(e.Path), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// Path is where the test itself finds a file of the server's, by its path there.
func (s *Server) Path(name string) string { return filepath.Join(s.root, name) }

// Put writes a file of the server's, with its directories.
func (s *Server) Put(name, content string) {
	s.t.Helper()
	s.must("put a file", os.MkdirAll(filepath.Dir(s.Path(name)), 0o755))
	s.must("put a file", os.WriteFile(s.Path(name), []byte(content), 0o644))
}

// Address is the server's IPv4 address.
func (s *Server) Address() string {
	if s.wire == nil {
		return "127.0.0.1"
	}
	return s.wire.server.v4.Addr().String()
}

// Address6 is the server's IPv6 address, without brackets.
func (s *Server) Address6() string {
	if s.wire == nil {
		return "::1"
	}
	return s.wire.server.v6.Addr().String()
}

// Kind is the server's software.
func (s *Server) Kind() Kind { return s.config.Kind }

// String names the software and the server.
func (s *Server) String() string {
	return strings.TrimSpace(s.config.Kind.String() + " " + s.config.Name)
}

// Stop stops the server: nothing listens, clients are refused. Its rpcbind
// lives on. Stopping twice is stopping once.
func (s *Server) Stop() {
	s.t.Helper()
	if s.running {
		s.must("stop", s.backend.stop())
		s.running = false
	}
}

// Start starts a server that was stopped.
func (s *Server) Start() {
	s.t.Helper()
	if !s.running {
		s.must("start", s.start(context.Background()))
	}
}

// Restart stops the server and starts it again. File handles stay good, and
// clients carry on.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	s.Start()
}

// Replace restarts the server as if it had been installed anew: every file
// handle that clients have is stale, their roots' too. The files are the same.
func (s *Server) Replace() {
	s.t.Helper()
	s.Stop()
	clear(s.ids)
	s.Start()
}

// Speak restarts the server with other versions; clients' handles stay good.
func (s *Server) Speak(versions ...string) {
	s.t.Helper()
	s.Stop()
	s.config.Versions = versions
	s.Start()
}

// SetExports exports these and nothing else from now on, while the server
// runs. What clients have mounted of others becomes stale; a kernel server that
// exports nothing at all to a client denies it access instead.
func (s *Server) SetExports(exports ...Export) {
	s.t.Helper()
	s.config.Exports = slices.Clone(exports)
	s.must("make the exports", s.makeExports())
	s.must("export", s.backend.export(context.Background()))
}

// Unexport takes one export away while the server runs.
func (s *Server) Unexport(path string) {
	s.t.Helper()
	s.SetExports(slices.DeleteFunc(slices.Clone(s.config.Exports), func(e Export) bool { return e.Path == path })...)
}

func (s *Server) start(ctx context.Context) error {
	if err := s.backend.export(ctx); err != nil {
		return err
	}
	if err := s.backend.start(ctx); err != nil {
		return err
	}
	s.running = true
	return nil
}
