package nfs_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/nfs"
	"github.com/podvol/podvol/volume/volumetest"
)

// The contract holds with a policy too, for pods that ask for something.
func TestConformanceUnderAPolicy(t *testing.T) {
	configured := func() volume.VolumePlugin {
		return nfs.New(nfs.Config{Inline: nfs.InlinePolicy{Servers: []nfs.ServerPolicy{
			{Server: "10.0.0.0/8", Allow: []string{"vers", "noatime"}, Defaults: []string{"nosuid", "timeo=70"}, MakeBelow: []string{"/export"}},
		}}})
	}
	asks := func(keysAndValues ...string) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Annotations = make(map[string]string)
			for i := 0; i < len(keysAndValues); i += 2 {
				p.Annotations[keysAndValues[i]+"/vol"] = keysAndValues[i+1]
			}
		}
	}
	const none = "no NFS server is there"
	source := func(path string) func(*volumetest.Node) *volume.Spec {
		return volumetest.Inline(v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "10.0.0.1", Path: path}})
	}
	serve := func(n *volumetest.Node) { n.Serve("10.0.0.1:/export", map[string]string{"there/index.html": "hello"}) }
	files := map[string]volumetest.File{"index.html": {Content: "hello"}}
	volumetest.Run(t, configured, volumetest.Suite{
		Working: []volumetest.Case{
			{
				Name: "options", Spec: source("/export/there"), Prepare: serve, Shared: true, NoKernel: none,
				Pod:  asks(nfs.AnnotationMountOptions, "vers=4.1,noatime"),
				Want: volumetest.Want{Files: files, Mount: &volumetest.Mount{FSType: "nfs", Options: []string{"nosuid", "timeo=70"}}}, // other volumes of the pods ask for nothing
			},
			{
				Name: "a directory that is there", Spec: source("/export/there"), Prepare: serve, Shared: true, NoKernel: none,
				Pod:  asks(nfs.AnnotationMakeVolumeDirectory, "0770"),
				Want: volumetest.Want{Files: files},
			},
			{
				Name: "a directory that is missing", Prepare: serve, Shared: true, NoKernel: none,
				Spec: func(*volumetest.Node) *volume.Spec {
					return persistent("10.0.0.1", "/export/not/there", func(pv *v1.PersistentVolume) {
						pv.Annotations = map[string]string{nfs.AnnotationMakeDirectory: "0770"}
						pv.Spec.MountOptions = []string{"noexec", "vers=3"}
					})
				},
				Want: volumetest.Want{Mode: 0o770, Mount: &volumetest.Mount{Source: "10.0.0.1:/export/not/there", Options: []string{"vers=3"}}},
			},
			{
				Name: "persistent", Prepare: serve, Shared: true, NoKernel: none,
				Spec: func(*volumetest.Node) *volume.Spec {
					return persistent("10.0.0.1", "/export/there", func(pv *v1.PersistentVolume) {
						pv.Annotations = map[string]string{nfs.AnnotationMakeDirectory: "0770"}
						pv.Spec.MountOptions = []string{"noexec", "vers=3"}
					})
				},
				Want: volumetest.Want{Files: files, Mount: &volumetest.Mount{Options: []string{"noexec", "vers=3"}}},
			},
		},
		Storage: []volumetest.StorageCase{storage(t, "sub-directories", nil)},
		Refused: []volumetest.RefusedCase{
			{Name: "an option", Spec: source("/export/there"), Prepare: serve, Pod: asks(nfs.AnnotationMountOptions, "sync"), Because: `add "sync"`, NoKernel: none},
			{Name: "a directory", Spec: source("/other/there"), Prepare: serve, Pod: asks(nfs.AnnotationMakeVolumeDirectory, "0770"), Because: `add "/other"`, NoKernel: none},
			{Name: "no option", Spec: source("/export/there"), Prepare: serve, Pod: asks(nfs.AnnotationMountOptions, "a\nb"), Because: "is no option", NoKernel: none},
		},
	})
}
