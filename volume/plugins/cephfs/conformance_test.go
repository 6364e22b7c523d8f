package cephfs_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/cephfs"
	"github.com/podvol/podvol/volume/volumetest"
)

// key is a key as a cluster makes it, but of known bytes.
const key = "AQABAgMEBQYHCBAAAAECAwQFBgcICQoLDA0ODw=="

func secret(name string, data map[string]string) *v1.Secret {
	s := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string][]byte{}}
	for k, v := range data {
		s.Data[k] = []byte(v)
	}
	return s
}

func TestConformance(t *testing.T) {
	const noKernel = "no cluster is there"
	monitors := []string{"10.0.0.1:6789", "10.0.0.2"}
	inline := func(change func(*v1.CephFSVolumeSource)) func(*volumetest.Node) *volume.Spec {
		s := &v1.CephFSVolumeSource{Monitors: monitors, Path: "/export", User: "web", SecretRef: &v1.LocalObjectReference{Name: "ceph"}}
		change(s)
		return volumetest.Inline(v1.VolumeSource{CephFS: s})
	}
	persistent := v1.CephFSPersistentVolumeSource{Monitors: monitors, Path: "/export", SecretRef: &v1.SecretReference{Namespace: "default", Name: "ceph"}}
	serve := func(n *volumetest.Node) {
		n.Serve("10.0.0.1:6789,10.0.0.2:6789:/export", map[string]string{"index.html": "hello"})
	}
	files := map[string]volumetest.File{"index.html": {Content: "hello"}}
	volumetest.Run(t, func() volume.VolumePlugin { return cephfs.New(cephfs.Config{}) }, volumetest.Suite{
		Objects: []metav1.Object{secret("ceph", map[string]string{"key": key})},
		Canary:  key,
		Working: []volumetest.Case{
			{
				Name: "inline", Spec: inline(func(*v1.CephFSVolumeSource) {}), Prepare: serve, Shared: true, NoKernel: noKernel,
				Want: volumetest.Want{Files: files, Mount: &volumetest.Mount{Source: "10.0.0.1:6789,10.0.0.2:6789:/export", FSType: "ceph", Options: []string{"name=web"}}},
			},
			{
				Name: "persistent", Spec: volumetest.Persistent(v1.PersistentVolumeSource{CephFS: &persistent}, true), Prepare: serve, Shared: true, NoKernel: noKernel,
				Want: volumetest.Want{Files: files, ReadOnly: true, Mount: &volumetest.Mount{FSType: "ceph", Options: []string{"ro", "name=admin"}}},
			},
			{
				Name: "options", Prepare: serve, Shared: true, NoKernel: noKernel,
				Spec: func(n *volumetest.Node) *volume.Spec {
					spec := volumetest.Persistent(v1.PersistentVolumeSource{CephFS: &persistent}, false)(n)
					spec.PersistentVolume.Spec.MountOptions = []string{"noexec", "mds_namespace=second"}
					return spec
				},
				Want: volumetest.Want{Files: files, Mount: &volumetest.Mount{FSType: "ceph", Options: []string{"noexec", "mds_namespace=second"}}},
			},
		},
		Refused: []volumetest.RefusedCase{
			{Name: "no monitor", Spec: inline(func(s *v1.CephFSVolumeSource) { s.Monitors = nil }), Because: "cephfs.monitors"},
			{Name: "a path that climbs", Spec: inline(func(s *v1.CephFSVolumeSource) { s.Path = "/export/../other" }), Because: "cephfs.path"},
			{Name: "the node's own key", Spec: inline(func(s *v1.CephFSVolumeSource) { s.SecretRef = nil }), Because: "does not lend"},
			{Name: "no secret", Spec: inline(func(s *v1.CephFSVolumeSource) { s.SecretRef.Name = "none" }), Because: "not found"},
		},
	})
}
