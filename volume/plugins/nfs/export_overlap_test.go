package nfs_test

import (
	"testing"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/nfs"
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
			if got, err := volume.SharesData(p, specs[0], specs[1]); err != nil || got != tc.want {
				t.Errorf("%+v: %v, %v", tc, got, err)
			}
		}
	}
	for _, bad := range []*volume.Spec{inline("", "/a"), inline("s", "a"), nil} {
		if got, err := volume.SharesData(p, bad, inline("s", "/a")); err == nil || got {
			t.Errorf("SharesData(%v) = %v, %v", bad, got, err)
		}
		if got, err := volume.SharesData(p, inline("s", "/a"), bad); err == nil || got {
			t.Errorf("SharesData(…, %v) = %v, %v", bad, got, err)
		}
	}
}
