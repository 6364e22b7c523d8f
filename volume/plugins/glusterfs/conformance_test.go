package glusterfs_test

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/glusterfs"
	"github.com/podvol/podvol/volume/volumetest"
)

// endpoints is an Endpoints object, with the addresses in one subset each.
func endpoints(namespace, name string, addresses ...string) *kubeapi.Endpoints {
	e := &kubeapi.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	for _, a := range addresses {
		e.Subsets = append(e.Subsets, kubeapi.EndpointSubset{
			Addresses: []v1.EndpointAddress{{IP: a}}, Ports: []v1.EndpointPort{{Port: 1}},
		})
	}
	return e
}

// By default the users of a pod's namespace choose no servers.
func TestConformanceWithoutTrust(t *testing.T) {
	const noKernel = "no Gluster server is there"
	persistent := func(namespace *string) func(*volumetest.Node) *volume.Spec {
		s := &v1.GlusterfsPersistentVolumeSource{EndpointsName: "gluster", EndpointsNamespace: namespace, Path: "data"}
		return volumetest.Persistent(v1.PersistentVolumeSource{Glusterfs: s}, false)
	}
	working := func(name, namespace, address string) volumetest.Case {
		return volumetest.Case{
			Name: name, Spec: persistent(&namespace), Shared: true, NoKernel: noKernel,
			Prepare: func(n *volumetest.Node) { n.Serve(address+":data", map[string]string{"index.html": "hello"}) },
			Want: volumetest.Want{
				Files: map[string]volumetest.File{"index.html": {Content: "hello"}}, Mount: &volumetest.Mount{Source: address + ":data"},
			},
		}
	}
	inline := volumetest.Inline(v1.VolumeSource{Glusterfs: &v1.GlusterfsVolumeSource{EndpointsName: "gluster", Path: "data"}})
	volumetest.Run(t, func() volume.VolumePlugin { return glusterfs.New(glusterfs.Config{}) }, volumetest.Suite{
		Working: []volumetest.Case{
			working("an administrator's namespace", "storage", "198.51.100.1"),
			working("the claim's namespace, which an administrator has named", "default", "192.0.2.1"),
		},
		Refused: []volumetest.RefusedCase{
			{Name: "inline", Spec: inline, Because: "use a PersistentVolume with an endpointsNamespace"},
			{Name: "no namespace", Spec: persistent(nil), Because: "glusterfs.endpointsNamespace"},
			{Name: "an empty namespace", Spec: persistent(new("")), Because: "glusterfs.endpointsNamespace"},
		},
		Objects: []metav1.Object{endpoints("default", "gluster", "192.0.2.1"), endpoints("storage", "gluster", "198.51.100.1")},
	})
}

func TestConformance(t *testing.T) {
	const noKernel = "no Gluster server is there"
	serve := func(source string) func(*volumetest.Node) {
		return func(n *volumetest.Node) { n.Serve(source, map[string]string{"index.html": "hello"}) }
	}
	files := map[string]volumetest.File{"index.html": {Content: "hello"}}
	inline := func(endpoints, path string) func(*volumetest.Node) *volume.Spec {
		return volumetest.Inline(v1.VolumeSource{Glusterfs: &v1.GlusterfsVolumeSource{EndpointsName: endpoints, Path: path}})
	}
	var many []string // an argument has room for some of them
	for i := range 100 {
		many = append(many, fmt.Sprintf("198.51.100.%d", i+1))
	}
	elsewhere := &v1.GlusterfsPersistentVolumeSource{EndpointsName: "gluster", EndpointsNamespace: new("storage"), Path: "data/team/a"}
	volumetest.Run(t, func() volume.VolumePlugin { return glusterfs.New(glusterfs.Config{TrustPodNamespaces: true}) }, volumetest.Suite{
		Working: []volumetest.Case{
			{
				Name: "many servers", Spec: inline("many", "data"), Prepare: serve("198.51.100.1:data"), Shared: true, NoKernel: noKernel,
				Want: volumetest.Want{Files: files, Mount: &volumetest.Mount{
					Source: "198.51.100.1:data", FSType: "glusterfs", Options: []string{"backup-volfile-servers=" + strings.Join(many[1:32], ":")}}},
			},
			{
				Name: "inline", Spec: inline("gluster", "data"), Prepare: serve("192.0.2.1:data"), Shared: true, NoKernel: noKernel,
				Want: volumetest.Want{Files: files, Mount: &volumetest.Mount{
					Source: "192.0.2.1:data", FSType: "glusterfs", Options: []string{"backup-volfile-servers=192.0.2.2:[2001:db8::3]", "log-level=ERROR", "auto_unmount"}}},
			},
			{
				Name: "persistent read-only", Spec: volumetest.Persistent(v1.PersistentVolumeSource{Glusterfs: elsewhere}, true),
				Prepare: serve("198.51.100.1:data/team/a"), Shared: true, NoKernel: noKernel,
				Want: volumetest.Want{Files: files, ReadOnly: true, Mount: &volumetest.Mount{Source: "198.51.100.1:data/team/a", Options: []string{"ro"}}},
			},
			{
				Name: "options", Prepare: serve("192.0.2.1:data"), Shared: true, NoKernel: noKernel,
				Spec: func(n *volumetest.Node) *volume.Spec {
					s := &v1.GlusterfsPersistentVolumeSource{EndpointsName: "gluster", Path: "data"}
					spec := volumetest.Persistent(v1.PersistentVolumeSource{Glusterfs: s}, false)(n)
					spec.PersistentVolume.Spec.MountOptions = []string{"log-level=WARNING", "backup-volfile-servers=a", "acl"}
					return spec
				},
				Want: volumetest.Want{Files: files, Mount: &volumetest.Mount{Options: []string{"log-level=WARNING", "backup-volfile-servers=a", "acl"}}},
			},
		},
		Refused: []volumetest.RefusedCase{
			{Name: "no endpoints", Spec: inline("", "data"), Because: "glusterfs.endpoints"},
			{Name: "endpoints of elsewhere", Spec: inline("../secrets/x", "data"), Because: "glusterfs.endpoints"},
			{Name: "no path", Spec: inline("gluster", ""), Because: "glusterfs.path"},
			{Name: "an option as path", Spec: inline("gluster", "--volfile=x"), Because: "glusterfs.path"},
			{Name: "an option behind a slash", Spec: inline("gluster", "/-x"), Because: "glusterfs.path"},
			{Name: "two arguments", Spec: inline("gluster", "data --volfile=x"), Because: "glusterfs.path"},
			{Name: "another server", Spec: inline("gluster", "h:data"), Because: "glusterfs.path"},
			{Name: "a glob", Spec: inline("gluster", "*"), Because: "glusterfs.path"},
			{Name: "out of the volume", Spec: inline("gluster", "data/../other"), Because: "glusterfs.path"},
			{Name: "unknown endpoints", Spec: inline("nowhere", "data"), Because: "not found"},
			{Name: "no addresses", Spec: inline("empty", "data"), Because: "no ready addresses"},
			{Name: "a loopback address", Spec: inline("loopback", "data"), Because: "loopback"},
			{Name: "a link-local address among others", Spec: inline("local", "data"), Because: "link-local"},
			{Name: "a mapped loopback address", Spec: inline("mapped", "data"), Because: "loopback"},
			{Name: "a name", Spec: inline("name", "data"), Because: "not an IP address"},
			{Name: "the wrong mode", Spec: volumetest.PersistentBlock(v1.PersistentVolumeSource{Glusterfs: elsewhere}), Because: "volumeMode"},
		},
		Objects: []metav1.Object{
			endpoints("default", "gluster", "192.0.2.1", "192.0.2.2", "192.0.2.1", "2001:db8::3"),
			endpoints("storage", "gluster", "198.51.100.1"),
			endpoints("default", "many", many...),
			endpoints("default", "empty"),
			endpoints("default", "loopback", "127.0.0.1"),
			endpoints("default", "local", "192.0.2.1", "fe80::1"),
			endpoints("default", "mapped", "::ffff:127.0.0.1"),
			endpoints("default", "name", "gluster.example,log-file=/etc/passwd"),
		},
	})
}
