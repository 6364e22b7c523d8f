package iscsi_test

import (
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumetest"
)

func TestConformance(t *testing.T) {
	nodes := newTargets()
	disk := func(n *volumetest.Node) v1.ISCSIPersistentVolumeSource {
		return v1.ISCSIPersistentVolumeSource{TargetPortal: "192.0.2.1", IQN: iqnOf(filepath.Join(n.Dir, "disk")), Lun: 3, FSType: "ext4"}
	}
	persistent := func(change func(*v1.ISCSIPersistentVolumeSource), readOnly bool) func(*volumetest.Node) *volume.Spec {
		return func(n *volumetest.Node) *volume.Spec {
			s := disk(n)
			change(&s)
			return volumetest.Persistent(v1.PersistentVolumeSource{ISCSI: &s}, readOnly)(n)
		}
	}
	plain := func(*v1.ISCSIPersistentVolumeSource) {}
	inline := func(n *volumetest.Node) *volume.Spec {
		s := disk(n)
		return volumetest.Inline(v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{
			TargetPortal: s.TargetPortal, IQN: s.IQN, Lun: s.Lun,
		}})(n)
	}
	write := func(n *volumetest.Node) { n.Write(map[string]string{"disk/file": "data"}) }
	want := volumetest.Want{Files: map[string]volumetest.File{"file": {Content: "data"}}, Mount: &volumetest.Mount{}}
	readOnly := want
	readOnly.ReadOnly, readOnly.Mount = true, &volumetest.Mount{Options: []string{"ro"}}
	chap := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "chap"}, Data: map[string][]byte{
		"node.session.auth.username": []byte("node"), "node.session.auth.password": []byte("password")}}

	volumetest.Run(t, func() volume.VolumePlugin { return newHosted(nodes) }, volumetest.Suite{
		Working: []volumetest.Case{
			{Name: "writable", Spec: persistent(plain, false), Prepare: write, Shared: true, Want: want},
			{Name: "read-only", Spec: persistent(plain, true), Prepare: write, Shared: true, Want: readOnly},
			{Name: "secret", Spec: persistent(func(s *v1.ISCSIPersistentVolumeSource) {
				s.SessionCHAPAuth, s.SecretRef = true, &v1.SecretReference{Namespace: "default", Name: "chap"}
			}, false), Prepare: write, Shared: true, Want: want},
			{Name: "inline", Spec: inline, Prepare: write, Shared: true, Want: want},
			{Name: "device", Spec: func(n *volumetest.Node) *volume.Spec {
				s := disk(n)
				return volumetest.PersistentBlock(v1.PersistentVolumeSource{ISCSI: &s})(n)
			}, Prepare: write, Shared: true},
		},
		Refused: []volumetest.RefusedCase{
			{Name: "portal", Spec: persistent(func(s *v1.ISCSIPersistentVolumeSource) { s.TargetPortal = "a\nb" }, false), Because: "iscsi.targetPortal"},
			{Name: "no secret", Spec: persistent(func(s *v1.ISCSIPersistentVolumeSource) {
				s.SessionCHAPAuth, s.SecretRef = true, &v1.SecretReference{Namespace: "default", Name: "none"}
			}, false), Prepare: write, Because: "not found"},
		},
		Objects: []metav1.Object{chap},
	})
}
