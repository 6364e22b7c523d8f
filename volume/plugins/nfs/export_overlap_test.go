package nfs_test

import (
	"testing"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/nfs"
	"github.com/podvol/podvol/volume/volumesource"
)

func TestSharesData(t *testing.T) {
	p := nfs.New(nfs.Config{})
	for _, tc := range []struct {
		server, path, otherServer, otherPath string
		want                                 bool
	}{
		{"s", "/a", "s", "/a", true},
		{"s", "/a", "S", "/a/", true},
		{"fd00::1", "/a", "[fd00:0::1]", "/a", true},
		{"10.0.0.1", "/a", "::ffff:10.0.0.1", "/a", true},
		{"10.0.0.1", "/a", "[::FFFF:a00:1]", "/a/b", true},
		{"10.0.0.1", "/a", "::10.0.0.1", "/a", false},
		{"fd00::1", "/a", "fd00::1%eth0", "/a/b", true},
		{"[FE80::1%eth0]", "/a", "fe80::1%enp1s0", "/a", true}, // another node's name of the link
		{"fe80::1%eth0", "/a", "fe80::2%eth0", "/a", false},
		{"nas.example", "/a", "NAS.example.", "/a", true},
		{"s", "/a", "s", "/a/b", true},
		{"s", "/a//b", "s", "/a/b/./c", true},
		{"s", "/", "s", "/a", true},
		{"s", "/a", "s", "/ab", false},
		{"s", "/a/b", "s", "/a/c", false},
		{"s", "/a", "t", "/a", false},
	} {
		a, b := inline(tc.server, tc.path), persistent(tc.otherServer, tc.otherPath)
		for _, specs := range [][2]*volume.Spec{{a, b}, {b, a}} {
			if got, err := volumesource.SharesData(p, specs[0], specs[1]); err != nil || got != tc.want {
				t.Errorf("%+v: %v, %v", tc, got, err)
			}
		}
	}
	for _, bad := range []*volume.Spec{inline("s", "a"), inline("[s", "/a"), inline("s:2049", "/a/../a/b"), inline("s", ""), nil} {
		for _, specs := range [][2]*volume.Spec{{bad, inline("s", "/a")}, {inline("s", "/a"), bad}, {bad, bad}} {
			if got, err := volumesource.SharesData(p, specs[0], specs[1]); err == nil || got {
				t.Errorf("SharesData(%v) = %v, %v", specs, got, err)
			}
		}
	}
	for _, bad := range []*volume.Spec{inline("", "/a"), inline("s", "b"), inline("s", "/a/../b"), inline("t:2049", "/a"), inline("1.2", "/a")} {
		for _, specs := range [][2]*volume.Spec{{bad, inline("s", "/a")}, {inline("s", "/a"), bad}} {
			if got, err := volumesource.SharesData(p, specs[0], specs[1]); err != nil || got {
				t.Errorf("SharesData(%v) = %v, %v", specs, got, err)
			}
		}
	}
}

// An address is the same in whatever spelling somebody reads it.
func FuzzOddServers(f *testing.F) {
	for _, server := range []string{"10.1", "012.0.0.1", "[::1", "a,b", "fd00::1%eth0", "[fd00::1%eth0]:2049", "10.0.0.1:/exports/a/b", "nfs://10.0.0.1/exports%2fa", "0x", "1.2.3.4.5", "4294967296", "..", ":"} {
		f.Add(server, "/a/../b")
	}
	p := nfs.New(nfs.Config{})
	f.Fuzz(func(t *testing.T, server, path string) {
		odd, good := inline(server, path), inline("10.0.0.1", "/exports/a")
		if shares, err := volumesource.SharesData(p, odd, odd); err == nil && !shares {
			t.Errorf("%q:%q is another than itself", server, path)
		}
		one, errOne := volumesource.SharesData(p, odd, good)
		other, errOther := volumesource.SharesData(p, good, odd)
		if one != other || (errOne == nil) != (errOther == nil) {
			t.Errorf("%q:%q: %v, %v and %v, %v", server, path, one, errOne, other, errOther)
		}
	})
}
