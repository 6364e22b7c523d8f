package nfs_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

// sharingMounter shows every mount by the name of the server that came first, as
// Linux does where mounts share a superblock.
type sharingMounter struct {
	*fakemount.Mounter
	first string
}

func (s *sharingMounter) MountContext(ctx context.Context, r mount.Request) error {
	server, path, _ := strings.Cut(r.Source, ":/")
	if s.first == "" {
		s.first = server
	}
	if !slices.Contains(r.Options, "nosharecache") {
		r.Source = s.first + ":/" + path
	}
	return s.Mounter.MountContext(ctx, r)
}

func TestSeveralNamesOfOneServer(t *testing.T) {
	h := fakehost.New(t)
	h.Host.Mounter = &sharingMounter{Mounter: h.Fake}
	p := nfs.New(nfs.Config{})
	if err := p.Init(&h.Host); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		server string
		uid    types.UID
		own    bool // superblock
	}{{"10.0.0.1", "u1", false}, {"files.cluster.test", "u2", true}, {"10.0.0.1", "u3", false}} {
		m := mounter(t, p, inline(test.server, "/data"), test.uid)
		setUp(t, m)
		setUp(t, m) // finds what the first has mounted
		e, mounted := entryAt(t, h, m.GetPath())
		own := slices.Contains(slices.Concat(e.Options, e.SuperOptions), "nosharecache")
		if !mounted || e.Source != test.server+":/data" || own != test.own {
			t.Errorf("%s is shown as %+v; want a superblock of its own: %v", test.server, e, test.own)
		}
	}
	for _, uid := range []types.UID{"u1", "u2", "u3"} {
		tearDown(t, p, "vol1", uid)
	}
}
