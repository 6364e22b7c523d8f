package csi_test

import (
	"context"
	"errors"
	"net"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"google.golang.org/grpc/test/bufconn"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumetest"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// diskDriver is the driver's name. No volume of the kit has a part of it as its name.
const diskDriver = "disk.example.com"

// wire is a driver on a node of the kit, behind connections that virtual time knows.
type wire struct{ listener *bufconn.Listener }

// prepare starts the node's driver, with a volume that a controller has made large. It is
// another process: the kit disturbs the calls of the plugin, not those of the driver.
func (w *wire) prepare(n *volumetest.Node) {
	n.T().Helper()
	var mounter mount.Interface = host.New(host.Config{})
	if !n.Kernel {
		mounter = n.Fake.Beside()
	}
	can := csitest.AllCapabilities()
	can.VolumeMountGroup = false
	driver := csitest.New(csitest.Config{Name: diskDriver, Dir: n.T().TempDir(), Mounter: mounter, CreateOnUse: true, Capabilities: can})
	if _, err := driver.AddVolume("large", 8<<30, csitest.Directory); err != nil {
		n.T().Fatal(err)
	}
	w.listener = bufconn.Listen(64 << 10)
	if err := driver.Serve(w.listener); err != nil {
		n.T().Fatal(err)
	}
	n.T().Cleanup(func() {
		for _, broken := range driver.Violations() {
			n.T().Errorf("a rule of the specification was broken: %s", broken)
		}
		if err := driver.Close(); err != nil {
			n.T().Error(err)
		}
	})
}

// newPlugin returns a plugin whose driver is that of the node that was prepared last.
func (w *wire) newPlugin() volume.VolumePlugin {
	listener := w.listener
	p, err := csi.New(csi.Config{
		Drivers: map[string]string{diskDriver: "/csi.sock"},
		Defaults: map[string]storagev1.CSIDriverSpec{diskDriver: {
			AttachRequired: new(false), PodInfoOnMount: new(true), FSGroupPolicy: new(storagev1.FileFSGroupPolicy),
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral},
		}},
		Dial: func(ctx context.Context, _ string) (net.Conn, error) {
			if listener == nil {
				return nil, errors.New("no driver was started")
			}
			return listener.DialContext(ctx)
		},
	})
	if err != nil {
		panic(err)
	}
	return p
}

// disk is a volume whose calls need secrets: so the plugin has calls that the kit can disturb.
func disk(handle string) *v1.CSIPersistentVolumeSource {
	s := &v1.CSIPersistentVolumeSource{Driver: diskDriver, VolumeHandle: handle}
	s.NodeStageSecretRef = &v1.SecretReference{Namespace: "safe", Name: "key"}
	s.NodePublishSecretRef = s.NodeStageSecretRef.DeepCopy()
	return s
}

func TestConformance(t *testing.T) {
	w := &wire{}
	device := disk("device")
	device.VolumeAttributes = map[string]string{"disk": string(csitest.File)}
	var objects []metav1.Object
	for _, namespace := range []string{"safe", "default"} {
		objects = append(objects, &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "key"}, Data: map[string][]byte{"password": []byte("hunter2")}})
	}
	inline := v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: diskDriver, NodePublishSecretRef: &v1.LocalObjectReference{Name: "key"}}}
	volumetest.Run(t, w.newPlugin, volumetest.Suite{
		Objects: objects,
		Working: []volumetest.Case{
			{Name: "persistent", Prepare: w.prepare, Shared: true, Spec: volumetest.Persistent(v1.PersistentVolumeSource{CSI: disk("large")}, false)},
			{Name: "read-only", Prepare: w.prepare, Shared: true, Spec: volumetest.Persistent(v1.PersistentVolumeSource{CSI: disk("large")}, true), Want: volumetest.Want{ReadOnly: true}},
			{Name: "inline", Prepare: w.prepare, Spec: volumetest.Inline(inline)},
			{Name: "block", Prepare: w.prepare, Shared: true, NoKernel: "devices are root's",
				Spec: volumetest.PersistentBlock(v1.PersistentVolumeSource{CSI: device})},
		},
		Refused: []volumetest.RefusedCase{
			{Name: "no handle", Spec: volumetest.Persistent(v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: diskDriver}}, false), Because: "csi.volumeHandle"},
			{Name: "a driver's name that leads out", Spec: volumetest.Inline(v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "../x"}}), Because: "csi.driver"},
		},
	})
}
