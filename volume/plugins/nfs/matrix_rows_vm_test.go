package nfs_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nfsserver"
	"github.com/podvol/podvol/volume"
)

// rows are those of every server.
func (m *matrix) rows(t *testing.T) {
	m.versions(t)
	m.addresses(t)
	m.names(t)
	m.readOnly(t)
	m.options(t)
	m.pods(t)
	m.kerberos(t)
	m.helper(t)
	m.node(t)
	m.fallback(t)
}

func (m *matrix) versions(t *testing.T) {
	for _, version := range nfsserver.AllVersions() {
		m.row(t, "version "+version, func(n *client) {
			dir, _ := n.mount(n.persistent("/data", "vers="+version))
			n.wantVersion(version)
			n.wantReported(version, 0)
			n.wantContent(filepath.Join(dir, "hello"), "hello")
			n.writes(dir, "/data")
		})
	}
	m.row(t, "version not given, inline", func(n *client) {
		dir, _ := n.mount(inline(m.server.Address(), "/data"))
		n.wantVersion("4.2")
		n.wantReported("4.2", 0)
		n.wantContent(filepath.Join(dir, "hello"), "hello")
	})
}

// fallback leaves the server with all versions.
func (m *matrix) fallback(t *testing.T) {
	for _, test := range []struct {
		offered []string
		refused int
	}{
		{[]string{"3", "4.0", "4.1"}, 1},
		{[]string{"3", "4.0"}, 2},
		{[]string{"3"}, 1}, // a server without NFSv4 is not asked for 4.1 and 4.0
	} {
		want := test.offered[len(test.offered)-1]
		m.row(t, "fallback to "+want, func(n *client) {
			m.server.Speak(test.offered...)
			dir, _ := n.mount(n.persistent("/data"))
			n.wantVersion(want)
			n.wantReported(want, test.refused)
			n.wantContent(filepath.Join(dir, "hello"), "hello")
		})
	}
	m.row(t, "version 4.2 refused", func(n *client) {
		n.refused(n.persistent("/data", "vers=4.2"), mount.ErrVersionUnsupported)
	})
	m.server.Speak(nfsserver.AllVersions()...)
}

// refused wants a typed cause with advice.
func (n *client) refused(spec *volume.Spec, cause mount.Cause) *mount.Error {
	n.Helper()
	_, _, err := n.try(spec)
	e, ok := errors.AsType[*mount.Error](err)
	if !ok || !errors.Is(err, cause) || e.Uncertain {
		n.Fatalf("%v; want %v", err, cause)
	}
	n.said = cause.Error()
	return e
}

func (m *matrix) addresses(t *testing.T) {
	tests := []struct{ row, server, shown string }{
		{"IPv4", m.server.Address(), m.server.Address()},
		{"IPv6", m.server.Address6(), "[" + m.server.Address6() + "]"},
		{"IPv6 in brackets", "[" + m.server.Address6() + "]", "[" + m.server.Address6() + "]"},
		{"name, to IPv4", "files.cluster.test", "files.cluster.test"},
		{"name, to IPv6", "files6.cluster.test", "files6.cluster.test"},
	}
	for _, test := range tests {
		m.row(t, test.row, func(n *client) {
			dir, entry := n.mount(inline(test.server, "/data"))
			if entry.Source != test.shown+":/data" {
				n.Errorf("the mount table says %s", entry.Source)
			}
			n.wantContent(filepath.Join(dir, "hello"), "hello")
		})
		m.row(t, test.row+", version 3", func(n *client) {
			spec := persistent(test.server, "/data")
			spec.PersistentVolume.Spec.MountOptions = []string{"vers=3"}
			dir, _ := n.mount(spec)
			n.wantVersion("3")
			n.wantContent(filepath.Join(dir, "hello"), "hello")
		})
	}
}

// names mounts one export by several names of its server at once: each mount is
// shown by its own, and found again by that.
func (m *matrix) names(t *testing.T) {
	for _, version := range nfsserver.AllVersions() {
		m.row(t, "several names of one server, version "+version, func(n *client) {
			for _, server := range []string{m.server.Address(), "files.cluster.test", m.server.Address6(), "files6.cluster.test"} {
				spec := persistent(server, "/data")
				spec.PersistentVolume.Spec.MountOptions = []string{"vers=" + version}
				dir, entry := n.mount(spec)
				if strings.Trim(strings.TrimSuffix(entry.Source, ":/data"), "[]") != server {
					n.Errorf("%s is shown as %s", server, entry.Source)
				}
				n.wantContent(filepath.Join(dir, "hello"), "hello")
				again := mounter(n.T, n.plugin, spec, types.UID(fmt.Sprintf("pod-%d", n.pods)))
				if err := again.SetUp(n.Context(), volume.MounterArgs{}); err != nil {
					n.Errorf("set up again: %v", err)
				}
			}
		})
	}
}

func (m *matrix) readOnly(t *testing.T) {
	m.row(t, "read-only volume", func(n *client) {
		spec := inline(m.server.Address(), "/data")
		spec.Volume.NFS.ReadOnly = true
		dir, entry := n.mount(spec)
		if !entry.ReadOnly() {
			n.Errorf("mounted %q", entry.Options)
		}
		n.wantContent(filepath.Join(dir, "hello"), "hello")
		n.cannotWrite(dir, unix.EROFS)
	})
	m.row(t, "read-only export", func(n *client) {
		dir, _ := n.mount(inline(m.server.Address(), "/ro"))
		n.wantContent(filepath.Join(dir, "hello"), "hello")
		n.cannotWrite(dir, unix.EROFS)
	})
	m.row(t, "root_squash", func(n *client) {
		dir, _ := n.mount(inline(m.server.Address(), "/squashed"))
		n.wantContent(filepath.Join(dir, "hello"), "hello")
		n.cannotWrite(dir, unix.EACCES)
		n.said = "root may not write"
	})
	for _, version := range []string{"3", "4.2"} {
		// In both orders: mounts of one export share a superblock.
		m.row(t, "ReadOnlyMany beside a writer, version "+version, func(n *client) {
			shared := n.readOnlyMany(version)
			before, _ := n.mount(shared)
			writer, _ := n.mount(n.persistent("/data", "vers="+version))
			after, _ := n.mount(shared)
			for _, dir := range []string{before, after} {
				n.cannotWrite(dir, unix.EROFS)
			}
			n.writes(writer, "/data")
			n.cannotWrite(after, unix.EROFS)
			n.said = "EROFS for root"
		})
	}
}

func (n *client) readOnlyMany(version string) *volume.Spec {
	spec := n.persistent("/data", "vers="+version)
	spec.PersistentVolume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}
	return spec
}

func (m *matrix) options(t *testing.T) {
	for _, words := range [][]string{
		{"soft", "timeo=50", "retrans=3"}, {"hard", "timeo=300", "retrans=5"}, {"nconnect=4"}, {"noexec", "nosuid", "nodev"}, {"rsize=65536", "wsize=65536", "noac"},
	} {
		m.row(t, strings.Join(words, ","), func(n *client) {
			dir, entry := n.mount(n.persistent("/data", words...))
			n.wantOptions(entry, words...)
			n.wantContent(filepath.Join(dir, "hello"), "hello")
		})
	}
	m.row(t, "soft,timeo=70,retrans=4, version 3", func(n *client) {
		_, entry := n.mount(n.persistent("/data", "vers=3", "soft", "timeo=70", "retrans=4"))
		n.wantOptions(entry, "vers=3", "soft", "timeo=70", "retrans=4")
	})
	m.row(t, "an unknown option", func(n *client) {
		e := n.refused(n.persistent("/data", "frobnicate"), mount.ErrBadOption)
		if !strings.Contains(e.Option, "frobnicate") {
			n.Errorf("option %q", e.Option)
		}
	})
}

func (m *matrix) pods(t *testing.T) {
	m.row(t, "two pods, one ends", func(n *client) {
		spec := n.persistent("/data")
		first, _ := n.mount(spec)
		second, _ := n.mount(spec)
		n.end(spec, "pod-1")
		if _, mounted := n.at(first); mounted {
			n.Error("the first is still mounted")
		}
		n.wantContent(filepath.Join(second, "hello"), "hello")
		n.writes(second, "/data")
	})
	m.row(t, "metrics by statfs", func(n *client) {
		n.mount(n.persistent("/data"))
		metrics, err := mounter(n.T, n.plugin, n.persistent("/data"), "pod-1").(volume.MetricsProvider).GetMetrics(n.Context())
		if err != nil || metrics.Capacity == nil || metrics.Capacity.Value() <= 0 || metrics.Inodes == nil || metrics.Inodes.Value() <= 0 || metrics.Available.Cmp(*metrics.Capacity) > 0 {
			n.Errorf("%+v, %v", metrics, err)
		}
	})
}

func (m *matrix) kerberos(t *testing.T) {
	alone := host.Config{Via: host.ViaSystemCalls}
	m.rowOn(t, "Kerberos asked for", alone, func(n *client) {
		if e := n.refused(n.persistent("/data", "sec=krb5"), mount.ErrNeedsCommand); !strings.Contains(e.Error(), "Kerberos") {
			n.Error(e)
		}
	})
	m.row(t, "Kerberos asked for, no helper", func(n *client) {
		if e := n.refused(n.persistent("/data", "sec=krb5p"), mount.ErrHelperMissing); !strings.Contains(e.Advice(), "rpc.gssd") {
			n.Error(e)
		}
	})
	for _, version := range []string{"", "vers=3", "vers=4.2"} {
		m.row(t, strings.TrimSuffix("Kerberos demanded by the server, "+version, ", "), func(n *client) {
			if e := n.refused(n.persistent("/kerberos", strings.Fields(version)...), mount.ErrAccessDenied); !strings.Contains(e.Advice(), "sec=krb5") {
				n.Error(e)
			}
		})
	}
}

// helper runs with mount.nfs on the node. A name is known to the node's own
// resolver, since mount.nfs resolves it itself.
func (m *matrix) helper(t *testing.T) {
	t.Run("helper", func(t *testing.T) {
		config := host.Config{Via: host.ViaCommand, HelperDirs: []string{nfsserver.Helper(t, m.packages)}}
		nfsserver.Hosts(t, map[string]string{"files.node.test": m.server.Address()})
		for _, version := range nfsserver.AllVersions() {
			m.rowOn(t, "mount.nfs, version "+version, config, func(n *client) {
				dir, entry := n.mount(n.persistent("/data", "vers="+version))
				n.wantVersion(version)
				n.wantContent(filepath.Join(dir, "hello"), "hello")
				if !slices.Contains([]string{"nfs", "nfs4"}, entry.FSType) {
					n.Errorf("type %s", entry.FSType)
				}
			})
		}
		m.rowOn(t, "mount.nfs, version not given, by name", config, func(n *client) {
			dir, _ := n.mount(inline("files.node.test", "/data"))
			n.wantVersion("4.2")
			n.wantContent(filepath.Join(dir, "hello"), "hello")
		})
		m.rowOn(t, "mount.nfs, IPv6", config, func(n *client) {
			dir, _ := n.mount(inline(m.server.Address6(), "/data"))
			n.wantContent(filepath.Join(dir, "hello"), "hello")
		})
		m.rowOn(t, "mount.nfs, ReadOnlyMany beside a writer", config, func(n *client) {
			writer, _ := n.mount(n.persistent("/data", "vers=4.2"))
			reader, _ := n.mount(n.readOnlyMany("4.2"))
			n.cannotWrite(reader, unix.EROFS)
			n.writes(writer, "/data")
		})
		config.Via = host.ViaBest
		m.rowOn(t, "mount.nfs, Kerberos without rpc.gssd", config, func(n *client) {
			if e := n.refused(n.persistent("/data", "sec=krb5"), mount.ErrAccessDenied); !strings.Contains(e.Advice(), "rpc.gssd") {
				n.Error(e)
			}
		})
	})
}

// withoutStatd are the rows of a node without NFSv3's lock daemon.
func (m *matrix) withoutStatd(t *testing.T) {
	m.row(t, "no rpc.statd, version 3", func(n *client) {
		n.refused(n.persistent("/data", "vers=3"), mount.ErrNoLockDaemon)
	})
	m.row(t, "no rpc.statd, version 3, nolock", func(n *client) {
		dir, entry := n.mount(n.persistent("/data", "vers=3", "nolock"))
		n.wantOptions(entry, "local_lock=all")
		n.wantContent(filepath.Join(dir, "hello"), "hello")
	})
	m.row(t, "no rpc.statd, version not given", func(n *client) {
		n.mount(n.persistent("/data"))
		n.wantVersion("4.2")
	})
}
