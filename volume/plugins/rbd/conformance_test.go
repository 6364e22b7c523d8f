package rbd_test

import (
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/rbd"
	"github.com/podvol/podvol/volume/volumetest"
)

func secret(name, key string) *v1.Secret {
	return &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string][]byte{"key": []byte(key)}}
}

func TestConformance(t *testing.T) {
	c := newCluster()
	image := func(n *volumetest.Node) v1.RBDPersistentVolumeSource {
		return v1.RBDPersistentVolumeSource{CephMonitors: []string{"192.0.2.1"}, RBDImage: c.nameOf(filepath.Join(n.Dir, "disk")), FSType: "ext4",
			SecretRef: &v1.SecretReference{Namespace: "default", Name: "ceph"}}
	}
	persistent := func(change func(*v1.RBDPersistentVolumeSource), readOnly bool) func(*volumetest.Node) *volume.Spec {
		return func(n *volumetest.Node) *volume.Spec {
			s := image(n)
			change(&s)
			return volumetest.Persistent(v1.PersistentVolumeSource{RBD: &s}, readOnly)(n)
		}
	}
	plain := func(*v1.RBDPersistentVolumeSource) {}
	inline := func(n *volumetest.Node) *volume.Spec {
		s := image(n)
		return volumetest.Inline(v1.VolumeSource{RBD: &v1.RBDVolumeSource{
			CephMonitors: s.CephMonitors, RBDImage: s.RBDImage, SecretRef: &v1.LocalObjectReference{Name: "ceph"},
		}})(n)
	}
	write := func(n *volumetest.Node) { n.Write(map[string]string{"disk/file": "data"}) }
	want := volumetest.Want{Files: map[string]volumetest.File{"file": {Content: "data"}}, Mount: &volumetest.Mount{}}
	readOnly := want
	readOnly.ReadOnly, readOnly.Mount = true, &volumetest.Mount{Options: []string{"ro"}}

	volumetest.Run(t, func() volume.VolumePlugin { return newHosted(c, rbd.Config{}) }, volumetest.Suite{
		Working: []volumetest.Case{
			{Name: "writable", Spec: persistent(plain, false), Prepare: write, Shared: true, Want: want},
			{Name: "read-only", Spec: persistent(plain, true), Prepare: write, Shared: true, Want: readOnly},
			{Name: "mapped read-only", Spec: persistent(func(s *v1.RBDPersistentVolumeSource) { s.ReadOnly = true }, false), Prepare: write, Shared: true, Want: readOnly},
			{Name: "inline", Spec: inline, Prepare: write, Shared: true, Want: want},
			{Name: "device", Spec: func(n *volumetest.Node) *volume.Spec {
				s := image(n)
				return volumetest.PersistentBlock(v1.PersistentVolumeSource{RBD: &s})(n)
			}, Prepare: write, Shared: true},
		},
		Refused: []volumetest.RefusedCase{
			{Name: "monitors", Spec: persistent(func(s *v1.RBDPersistentVolumeSource) { s.CephMonitors = []string{"a b"} }, false), Because: "rbd.monitors"},
			{Name: "image", Spec: persistent(func(s *v1.RBDPersistentVolumeSource) { s.RBDImage = "a@snap" }, false), Because: "rbd.image"},
			{Name: "no secret", Spec: persistent(func(s *v1.RBDPersistentVolumeSource) { s.SecretRef.Name = "none" }, false), Prepare: write, Because: "not found"},
		},
		Objects: []metav1.Object{secret("ceph", key)},
	})
}
