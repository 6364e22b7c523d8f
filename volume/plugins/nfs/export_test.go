package nfs

import (
	"errors"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

func TestParseExport(t *testing.T) {
	tests := []struct{ server, path, want string }{
		{"10.20.172.211", "/nfs", "10.20.172.211:/nfs"},
		{"10.244.1.4", "/", "10.244.1.4:/"},
		{"nfs.example.com", "/a b/c", "nfs.example.com:/a b/c"},
		{"nfs_1.default.svc", "/a:/b", "nfs_1.default.svc:/a:/b"},
		{"fd00::1", "/nfs", "[fd00::1]:/nfs"},
		{"[fd00::1]", "/nfs", "[fd00::1]:/nfs"},
		{"fe80::1%eth0", "/nfs", "[fe80::1%eth0]:/nfs"},
		{"[fe80::1%eth0]", "/nfs", "[fe80::1%eth0]:/nfs"},
		{"::ffff:10.0.0.1", "/nfs", "[::ffff:10.0.0.1]:/nfs"},
		{"10.1.example.org", "/nfs", "10.1.example.org:/nfs"},
		{"0xfiles", "/nfs", "0xfiles:/nfs"},
		{"1.2.3.4a.", "/nfs", "1.2.3.4a.:/nfs"},
	}
	for _, test := range tests {
		e, err := parseExport(&v1.NFSVolumeSource{Server: test.server, Path: test.path})
		if err != nil || e.String() != test.want {
			t.Errorf("%q %q = %v, %v; want %s", test.server, test.path, e, err, test.want)
			continue
		}
		back, ok := parseTableSource(e.String())
		if !ok || back != e {
			t.Errorf("parseTableSource(%q) = %v, %v", e, back, ok)
		}
	}
}

func TestParseExportRefuses(t *testing.T) {
	tests := []struct{ server, path, field string }{
		{"", "/nfs", "nfs.server"},
		{"server", "", "nfs.path"},
		{"server", "nfs", "nfs.path"},
		{"server", "../nfs", "nfs.path"},
		{"server", "/nfs/../etc", "nfs.path"},
		{"server", "/nfs/.podvol", "nfs.path"},
		{"server", "/.Podvol/trash/x", "nfs.path"},
		{"server:2049", "/nfs", "nfs.server"},
		{"server:/other", "/nfs", "nfs.server"},
		{"[10.0.0.1]", "/nfs", "nfs.server"},
		{"[server]", "/nfs", "nfs.server"},
		{"[fd00::1", "/nfs", "nfs.server"},
		{"fd00::1]", "/nfs", "nfs.server"},
		{"fd00::g", "/nfs", "nfs.server"},
		{"fe80::1%eth0/x", "/nfs", "nfs.server"},
		{"10.0.0.1%eth0", "/nfs", "nfs.server"},
		{"server%eth0", "/nfs", "nfs.server"},
		{"ser ver", "/nfs", "nfs.server"},
		{"server\n", "/nfs", "nfs.server"},
		{"a,b", "/nfs", "nfs.server"},
		{"a/b", "/nfs", "nfs.server"},
		{"10.1", "/nfs", "nfs.server"},
		{"167772161", "/nfs", "nfs.server"},
		{"0x0a.0.0.1", "/nfs", "nfs.server"},
		{"10.0.0.0X1", "/nfs", "nfs.server"},
		{"0x", "/nfs", "nfs.server"},
		{"010.0.0.1", "/nfs", "nfs.server"},
		{"10.0.0.1.", "/nfs", "nfs.server"},
		{"10.0.0.256", "/nfs", "nfs.server"},
		{"files.1", "/nfs", "nfs.server"},
		{"-o", "/nfs", ""},
		{"server", "/nfs\nx", ""},
		{"server", "/nfs\x00", ""},
	}
	for _, test := range tests {
		e, err := parseExport(&v1.NFSVolumeSource{Server: test.server, Path: test.path})
		if err == nil || volume.IsUncertain(err) {
			t.Errorf("%q %q = %v, %v", test.server, test.path, e, err)
		}
		if test.field == "" {
			continue
		}
		if invalid, ok := errors.AsType[*volume.InvalidSpecError](err); !ok || invalid.Field != test.field {
			t.Errorf("%q %q = %v, want an invalid %s", test.server, test.path, err, test.field)
		}
	}
}

func TestSameExport(t *testing.T) {
	a := export{"fd00::1", "/nfs"}
	for other, want := range map[export]bool{
		{"fd00::1", "/nfs"}:     true,
		{"FD00:0::1", "/nfs/"}:  true,
		{"fd00::2", "/nfs"}:     false,
		{"fd00::1", "/nfs/sub"}: false,
		{"fd00::1", "/NFS"}:     false,
		{"server", "/nfs"}:      false,
	} {
		if got := a.same(other); got != want {
			t.Errorf("same(%v) = %v", other, got)
		}
	}
	if !(export{"Server", "/"}).same(export{"server", "/"}) {
		t.Error("names differ by case")
	}
}

func TestParseTableSourceOfSomethingElse(t *testing.T) {
	for _, source := range []string{"", "tmpfs", "/dev/sda1", ":/nfs", "server:nfs"} {
		if e, ok := parseTableSource(source); ok {
			t.Errorf("parseTableSource(%q) = %v", source, e)
		}
	}
}

func FuzzParseExport(f *testing.F) {
	f.Add("server", "/nfs")
	f.Add("[fe80::1%eth0]", "/")
	f.Add("a:b", "/c:/d")
	f.Fuzz(func(t *testing.T, server, path string) {
		e, err := parseExport(&v1.NFSVolumeSource{Server: server, Path: path})
		if err != nil {
			return
		}
		// What mount(8) is given names just this server and this path.
		if back, ok := parseTableSource(e.String()); !ok || back != e || back.path != path {
			t.Errorf("%q %q becomes %q, which reads %v", server, path, e, back)
		}
	})
}
