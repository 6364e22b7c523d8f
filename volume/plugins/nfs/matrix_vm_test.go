package nfs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/nfsserver"
	"github.com/podvol/podvol/util/testenv/vmtest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

// TestMatrix runs the plugin against real servers and prints what works with
// which, as a table whose lines begin with "matrix".
func TestMatrix(t *testing.T) {
	packages := nfsserver.Unpack(t)
	vmtest.Run(t, func(t *testing.T) {
		m := &matrix{packages: packages}
		t.Cleanup(func() { t.Log(m) })
		stopStatd := nfsserver.Statd(t, packages)
		for _, kind := range []nfsserver.Kind{nfsserver.Kernel, nfsserver.Ganesha} {
			m.server = nfsserver.Start(t, packages, nfsserver.Config{Kind: kind, Name: kind.String(), Exports: matrixExports()})
			m.server.Put("/data/hello", "hello")
			m.server.Put("/ro/hello", "hello")
			m.server.Put("/squashed/hello", "hello")
			m.rows(t)
		}
		stopStatd()
		m.withoutStatd(t)
	})
}

func matrixExports() []nfsserver.Export {
	return []nfsserver.Export{
		{Path: "/data"}, {Path: "/ro", ReadOnly: true}, {Path: "/squashed", RootSquash: true}, {Path: "/kerberos", Security: []string{"krb5"}},
	}
}

// matrix is what was found out so far, and the server of the row at hand.
type matrix struct {
	packages nfsserver.Packages
	server   *nfsserver.Server
	results  []result
}

type result struct {
	row, server, version, outcome string
	took                          time.Duration
}

func (m *matrix) String() string {
	var table strings.Builder
	table.WriteString("\nmatrix: mounted without helper (mount.nfs is on the node only where the row says so)\n")
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	line := func(r result, took string) {
		fmt.Fprintf(w, "matrix\t| %s\t| %s\t| %s\t| %s\t| %s\n", r.row, r.server, r.version, r.outcome, took)
	}
	line(result{row: "row", server: "server", version: "version", outcome: "result"}, "time")
	for _, r := range m.results {
		line(r, fmt.Sprintf("%.2f s", r.took.Seconds()))
	}
	w.Flush()
	return table.String()
}

// row runs f as one row of the table, with a node of its own.
func (m *matrix) row(t *testing.T, name string, f func(n *client)) {
	m.rowOn(t, name, host.Config{}, f)
}

func (m *matrix) rowOn(t *testing.T, name string, config host.Config, f func(n *client)) {
	t.Run(m.server.Kind().String()+" "+name, func(t *testing.T) {
		r := result{row: name, server: m.server.Kind().String(), version: "-", outcome: "FAILED"}
		start := time.Now()
		n := newClient(t, m.server, config)
		t.Cleanup(func() {
			if !t.Failed() {
				r.outcome = "ok"
				if n.said != "" {
					r.outcome += ": " + n.said
				}
			}
			r.took = time.Since(start)
			if n.version != "" {
				r.version = n.version
			}
			m.results = append(m.results, r)
		})
		f(n)
	})
}

// client is a node that mounts for real what a server exports.
type client struct {
	*testing.T
	server *nfsserver.Server
	plugin volume.VolumePlugin
	host   *host.Mounter
	log    *bytes.Buffer
	pods   int
	// version is the latest that the kernel got; said goes into the table.
	version, said string
}

// onlyOurNames is a resolver that knows what no DNS does.
type onlyOurNames map[string]string

func (o onlyOurNames) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	a, err := netip.ParseAddr(o[host])
	if err != nil {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return []netip.Addr{a}, nil
}

func newClient(t *testing.T, s *nfsserver.Server, config host.Config) *client {
	t.Helper()
	n := &client{T: t, server: s, plugin: nfs.New(nfs.Config{}), log: &bytes.Buffer{}}
	config.Logger = slog.New(slog.NewJSONHandler(n.log, nil))
	config.Resolver = onlyOurNames{"files.cluster.test": s.Address(), "files6.cluster.test": s.Address6()}
	n.host = host.New(config)
	root := nfsserver.DetachBelow(t, t.TempDir())
	if err := n.plugin.Init(&volume.Host{RootDir: root, NodeName: "node1", Mounter: n.host}); err != nil {
		t.Fatal(err)
	}
	return n
}

// try sets a volume up for a pod of its own, which ends with the row, and tells
// its directory and what the mount table says.
func (n *client) try(spec *volume.Spec) (dir string, entry mount.Entry, err error) {
	n.Helper()
	n.pods++
	uid := types.UID(fmt.Sprintf("pod-%d", n.pods))
	m := mounter(n.T, n.plugin, spec, uid)
	n.log.Reset()
	ctx, cancel := context.WithTimeout(n.Context(), 30*time.Second)
	defer cancel()
	if err := m.SetUp(ctx, volume.MounterArgs{}); err != nil {
		if _, mounted := n.at(m.GetPath()); mounted {
			n.Errorf("it failed and is mounted: %v", err)
		}
		return "", mount.Entry{}, err
	}
	n.Cleanup(func() { n.end(spec, uid) })
	entry, mounted := n.at(m.GetPath())
	if !mounted {
		n.Fatalf("the mount table does not have %s", m.GetPath())
	}
	n.version, _ = entry.Option("vers")
	return m.GetPath(), entry, nil
}

// mount is try where nothing may fail.
func (n *client) mount(spec *volume.Spec) (dir string, entry mount.Entry) {
	n.Helper()
	dir, entry, err := n.try(spec)
	if err != nil {
		n.Fatal(err)
	}
	return dir, entry
}

// end tears a pod's volume down, once more if it has been.
func (n *client) end(spec *volume.Spec, uid types.UID) {
	n.Helper()
	u := unmounter(n.T, n.plugin, spec.Name(), uid)
	if err := u.TearDown(context.Background()); err != nil {
		n.Errorf("tear down: %v", err)
	}
	if _, err := os.Lstat(u.GetPath()); !errors.Is(err, fs.ErrNotExist) {
		n.Errorf("%s is left: %v", u.GetPath(), err)
	}
}

func (n *client) at(dir string) (mount.Entry, bool) {
	n.Helper()
	mounts := table.Of(n.host)
	entry, mounted, err := mounts.At(dir)
	if err != nil {
		n.Fatal(err)
	}
	return entry, mounted
}

// persistent is a PersistentVolume of the server's with mount options.
func (n *client) persistent(path string, options ...string) *volume.Spec {
	spec := persistent(n.server.Address(), path)
	spec.PersistentVolume.Spec.MountOptions = options
	return spec
}

func (n *client) wantVersion(version string) {
	n.Helper()
	if n.version != version {
		n.Errorf("the kernel got version %s, want %s", n.version, version)
	}
}

// wantReported wants the version in the log, as nodes report it.
func (n *client) wantReported(version string, refused int) {
	n.Helper()
	var said struct {
		Msg, Version string
		Refused      []string
	}
	if err := json.Unmarshal(n.log.Bytes(), &said); err != nil || said.Version != version || len(said.Refused) != refused {
		n.Errorf("the log says %s (%v), want version %s after %d others", n.log, err, version, refused)
	}
}

func (n *client) wantOptions(entry mount.Entry, want ...string) {
	n.Helper()
	all := slices.Concat(entry.Options, entry.SuperOptions)
	for _, o := range want {
		if !slices.Contains(all, o) {
			n.Errorf("the mount table lacks %s: %q", o, all)
		}
	}
}

func (n *client) wantContent(file, content string) {
	n.Helper()
	if data, err := os.ReadFile(file); err != nil || string(data) != content {
		n.Errorf("read %q, %v; want %q", data, err, content)
	}
}

// writes has the pod write a file that the server then has.
func (n *client) writes(dir, export string) {
	n.Helper()
	name := "written-" + strings.ReplaceAll(filepath.Base(n.Name()), " ", "-")
	if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
		n.Errorf("write: %v", err)
	}
	n.wantContent(n.server.Path(filepath.Join(export, name)), name)
}

func (n *client) cannotWrite(dir string, because error) {
	n.Helper()
	if err := os.WriteFile(filepath.Join(dir, "new"), []byte("new"), 0o644); !errors.Is(err, because) {
		n.Errorf("writing says %v, want %v", err, because)
	}
}
