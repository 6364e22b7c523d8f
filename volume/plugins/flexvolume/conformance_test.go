package flexvolume_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/flexvolume"
	"github.com/podvol/podvol/volume/volumetest"
)

// On a kernel the drivers are programs, which mount by mount(8).
func TestConformance(t *testing.T) {
	dir := t.TempDir()
	install(t, dir, "example.com/plain", "example.com/disk")
	persistent := func(driver string, readOnly bool, change func(*v1.FlexPersistentVolumeSource)) func(*volumetest.Node) *volume.Spec {
		return func(n *volumetest.Node) *volume.Spec {
			s := v1.FlexPersistentVolumeSource{Driver: driver, Options: map[string]string{"dir": filepath.Join(n.Dir, "data")}}
			if change != nil {
				change(&s)
			}
			return volumetest.Persistent(v1.PersistentVolumeSource{FlexVolume: &s}, readOnly)(n)
		}
	}
	inline := func(driver string, readOnly bool) func(*volumetest.Node) *volume.Spec {
		return func(n *volumetest.Node) *volume.Spec {
			return volumetest.Inline(v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{Driver: driver, ReadOnly: readOnly, Options: map[string]string{"dir": filepath.Join(n.Dir, "data")}}})(n)
		}
	}
	withSecret := func(name string) func(*v1.FlexPersistentVolumeSource) {
		return func(s *v1.FlexPersistentVolumeSource) {
			s.SecretRef = &v1.SecretReference{Namespace: "default", Name: name}
		}
	}
	write := func(n *volumetest.Node) { n.Write(map[string]string{"data/file": "data"}) }
	want := volumetest.Want{Files: map[string]volumetest.File{"file": {Content: "data"}}, Mount: &volumetest.Mount{}}
	readOnly := want
	readOnly.ReadOnly, readOnly.Mount = true, &volumetest.Mount{Options: []string{"ro"}}
	secret := func(name, driver string) *v1.Secret {
		return &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Type: v1.SecretType(driver), Data: map[string][]byte{"key": []byte("material")}}
	}

	const alike = "another case has the same calls of the same driver, and each check starts dozens of programs"
	var noMount string
	if _, err := exec.LookPath("mount"); err != nil {
		noMount = "this machine has no mount(8), by which the drivers mount"
	}
	volumetest.Run(t, func() volume.VolumePlugin { return newHosted(flexvolume.Config{Dir: dir, SecretArguments: true}) }, volumetest.Suite{
		Working: []volumetest.Case{
			{Name: "plain with a secret", Spec: persistent("example.com/plain", false, withSecret("key")), Prepare: write, Shared: true, Want: want, NoKernel: alike},
			{Name: "plain inline, read-only", Spec: inline("example.com/plain", true), Prepare: write, Shared: true, Want: readOnly, NoKernel: noMount},
			{Name: "disk", Spec: persistent("example.com/disk", false, nil), Prepare: write, Shared: true, Want: want, NoKernel: noMount},
			{Name: "disk, read-only", Spec: persistent("example.com/disk", true, nil), Prepare: write, Shared: true, Want: readOnly, NoKernel: alike},
			{Name: "disk inline", Spec: inline("example.com/disk", false), Prepare: write, Shared: true, Want: want, NoKernel: alike},
		},
		Refused: []volumetest.RefusedCase{
			{Name: "missing driver", Spec: persistent("example.com/other", false, nil), Because: "driver example.com/other is not installed in " + dir},
			{Name: "outside", Spec: persistent("../plain", false, nil), Because: "flexVolume.driver"},
			{Name: "another's directory", Spec: persistent("example.com~plain/plain", false, nil), Because: "flexVolume.driver"},
			{Name: "reserved option", Spec: persistent("example.com/plain", false, func(s *v1.FlexPersistentVolumeSource) {
				s.Options["kubernetes.io/pod.name"] = "other"
			}), Because: "flexVolume.options"},
			{Name: "another's secret", Spec: persistent("example.com/plain", false, withSecret("other")), Prepare: write, Because: "flexVolume.secretRef"},
			{Name: "no secret", Spec: persistent("example.com/plain", false, withSecret("none")), Prepare: write, Because: "not found"},
		},
		Objects: []metav1.Object{secret("key", "example.com/plain"), secret("other", "Opaque")},
	})
}
