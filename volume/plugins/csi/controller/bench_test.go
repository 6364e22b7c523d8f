package controller_test

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/csi/controller"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

const driverName = csitest.DefaultName

func everything() csitest.Config {
	return csitest.Config{Capabilities: csitest.AllCapabilities()}
}

// bench is a host with a driver, and the plugin of its claims.
type bench struct {
	t      *testing.T
	host   *fakehost.Host
	driver *csitest.Driver
	plugin *controller.Plugin
	socket string
}

func newBench(t *testing.T, dc csitest.Config) *bench {
	t.Helper()
	b := &bench{t: t, host: fakehost.New(t), socket: filepath.Join(csitest.SocketDir(t), "csi.sock")}
	dc.Dir, dc.Mounter, dc.CreateOnUse = t.TempDir(), b.host.GetMounter(), true
	b.driver = csitest.New(dc)
	t.Cleanup(func() {
		if err := b.driver.Close(); err != nil {
			t.Error(err)
		}
		if broken := b.driver.Violations(); len(broken) > 0 {
			t.Errorf("rules of the specification were broken: %q", broken)
		}
	})
	b.must(b.driver.Start(b.socket))
	var err error
	b.plugin, err = controller.New(controller.Config{Drivers: map[string]string{driverName: b.socket}})
	b.must(err)
	t.Cleanup(func() { b.plugin.Close() })
	b.must(b.plugin.Init(b.host))
	return b
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func lastRequest[R any](b *bench, method string) R {
	b.t.Helper()
	calls := b.driver.CallsOf(method)
	if len(calls) == 0 {
		b.t.Fatalf("no call of %s", method)
	}
	r, ok := calls[len(calls)-1].Request.(R)
	if !ok {
		b.t.Fatalf("%s is %T", method, calls[len(calls)-1].Request)
	}
	return r
}

func sha256Hex(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// pvSpec is a PersistentVolume with handle h1.
func pvSpec() *volume.Spec {
	pv := &v1.PersistentVolume{}
	pv.Name = "pv1"
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "h1"}
	return volume.NewSpecFromPersistentVolume(pv, false)
}

func inlineSpec() *volume.Spec {
	return volume.NewSpecFromVolume(&v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: driverName}}})
}
