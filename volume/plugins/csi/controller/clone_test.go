package controller_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// copyOf is a claim "copy" of a class of the driver, with the content of another object.
func copyOf(kind, name string, change ...pvbuild.ClaimOption) *v1.PersistentVolumeClaim {
	return pvbuild.NewClaim("copy", "1Gi", append([]pvbuild.ClaimOption{pvbuild.OfClass("fast"), func(c *v1.PersistentVolumeClaim) {
		c.Spec.DataSource = &v1.TypedLocalObjectReference{Kind: kind, Name: name}
	}}, change...)...)
}

// withData binds the claim "data" and returns its volume, which has a file.
func (m *machine) withData() *v1.PersistentVolume {
	m.t.Helper()
	m.apply(pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")))
	m.idle()
	pv := m.wantBound()
	if err := os.WriteFile(filepath.Join(m.dataOf(pv), "file"), []byte("precious"), 0o600); err != nil {
		m.t.Fatal(err)
	}
	return pv
}

// dataOf is where the driver has the content of a volume.
func (m *machine) dataOf(pv *v1.PersistentVolume) string {
	m.t.Helper()
	dir, err := m.driver.Data(pv.Spec.CSI.VolumeHandle)
	if err != nil {
		m.t.Fatal(err)
	}
	return dir
}

// volumeOf returns the volume of a claim; nil: it has none.
func (m *machine) volumeOf(claim string) *v1.PersistentVolume {
	m.t.Helper()
	c, err := objects.Get[*v1.PersistentVolumeClaim](m.t.Context(), m.cluster.Objects(), pvbuild.ClaimRef(claim))
	if err != nil || c.Status.Phase != v1.ClaimBound {
		return nil
	}
	pv, err := objects.Get[*v1.PersistentVolume](m.t.Context(), m.cluster.Objects(), volume.NewObjectRef("PersistentVolume", "", c.Spec.VolumeName))
	if err != nil {
		m.t.Fatal(err)
	}
	return pv
}

// wantCopy checks that the claim "copy" has one volume of its own with the file.
func (m *machine) wantCopy(source *v1.PersistentVolume) {
	m.t.Helper()
	pv := m.volumeOf("copy")
	if pv == nil {
		m.t.Fatalf("the copy is not bound: %v", m.why("copy"))
	}
	if data, err := os.ReadFile(filepath.Join(m.dataOf(pv), "file")); err != nil || string(data) != "precious" || pv.Spec.CSI.VolumeHandle == source.Spec.CSI.VolumeHandle {
		m.t.Errorf("volume %q of source %q has %q, %v", pv.Spec.CSI.VolumeHandle, source.Spec.CSI.VolumeHandle, data, err)
	}
}

func (m *machine) why(claim string) string {
	return fmt.Sprint(m.cluster.Explain(m.t.Context(), pvbuild.ClaimRef(claim).NamespacedName))
}

// creations are the requests by which copies were made.
func (m *machine) creations() (all []*spec.CreateVolumeRequest) {
	for _, call := range m.driver.CallsOf("CreateVolume") {
		if r := call.Request.(*spec.CreateVolumeRequest); r.VolumeContentSource != nil {
			all = append(all, r)
		}
	}
	return all
}

// Whatever strikes the call, the copy is made once, by the same call, and its source stays
// until then although its claim is deleted meanwhile.
func TestCopyIsMadeOnceWhateverHappens(t *testing.T) {
	eachStrike(t, func(t *testing.T, s strike) {
		if s.lies {
			return // the claim may look for its source again
		}
		m := newMachine(t, csitest.Config{})
		source := m.withData()
		seen := len(m.driver.CallsOf("CreateVolume"))
		fault := s.do(m)
		fault.Match, fault.Nth, fault.After = csitest.Method("CreateVolume"), 1, s.after
		defer m.driver.Inject(fault)()
		m.apply(copyOf("PersistentVolumeClaim", "data"))
		m.idle()
		if len(m.driver.CallsOf("CreateVolume")) == seen {
			t.Fatalf("CreateVolume was not called: %s", m.why("copy"))
		}
		m.driver.Kill()
		m.startDriver()
		m.restart()
		m.idle()
		m.wantCopy(source)
		all := m.creations()
		for _, r := range all[1:] {
			if !proto.Equal(r, all[0]) {
				t.Errorf("asked for %v, and then for %v", all[0], r)
			}
		}
		m.delete()
		m.idle()
		if ids := m.volumes(); len(ids) != 1 || ids[0] != m.volumeOf("copy").Spec.CSI.VolumeHandle {
			t.Errorf("without the source there are %q", ids)
		}
	})
}

// A source whose claim goes while it is copied is deleted after that.
func TestSourceStaysWhileItIsCopied(t *testing.T) {
	m := newMachine(t, csitest.Config{})
	source := m.withData()
	called := make(chan struct{})
	defer m.driver.Inject(csitest.Fault{Match: csitest.Method("CreateVolume"), Nth: 1, Hook: func() { close(called) }, Release: make(chan struct{})})()
	m.apply(copyOf("PersistentVolumeClaim", "data"))
	<-called
	m.delete()
	m.await(source.Name, func(pv *v1.PersistentVolume) bool {
		return pv != nil && strings.Contains(pv.Status.Message, "being made as a copy")
	})
	m.restart() // which asks for the same copy again
	m.await(source.Name, func(pv *v1.PersistentVolume) bool { return pv == nil })
	m.idle()
	m.wantCopy(source)
	if ids := m.volumes(); len(ids) != 1 || ids[0] == source.Spec.CSI.VolumeHandle {
		t.Errorf("in the end there are %q", ids)
	}
}

// await waits for a state of a volume, which is nil once it is gone.
func (m *machine) await(name string, done func(*v1.PersistentVolume) bool) {
	m.t.Helper()
	ref, changed := volume.NewObjectRef("PersistentVolume", "", name), make(chan struct{}, 1)
	defer m.cluster.Objects().Watch(ref, func(volume.ObjectRef) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})()
	for {
		pv, err := objects.Get[*v1.PersistentVolume](m.t.Context(), m.cluster.Objects(), ref)
		if err != nil && !errors.Is(err, volume.ErrNotFound) {
			m.t.Fatal(err)
		}
		if done(pv) {
			return
		}
		<-changed
	}
}

// What cannot be copied is refused before a call, and with what to do.
func TestCopyIsRefused(t *testing.T) {
	other := func(t *testing.T, m *machine) {
		pv := pvbuild.NewPV("theirs", "1Gi", pvbuild.Class(""))
		pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "other.io", VolumeHandle: "h"}}
		m.apply(pv, pvbuild.NewClaim("theirs", "1Gi", pvbuild.OfClass(""), pvbuild.Naming("theirs")))
	}
	for name, tc := range map[string]struct {
		claim   *v1.PersistentVolumeClaim
		prepare func(*testing.T, *machine)
		driver  func(*csitest.Capabilities)
		want    []string
	}{
		"a snapshot":        {claim: copyOf("VolumeSnapshot", "monday", func(c *v1.PersistentVolumeClaim) { c.Spec.DataSource.APIGroup = new("snapshot.storage.k8s.io") }), want: []string{`VolumeSnapshot "monday"`, "spec.volumeName"}},
		"another namespace": {claim: copyOf("", "", func(c *v1.PersistentVolumeClaim) { c.Spec.DataSource, c.Spec.DataSourceRef = nil, inNamespace("else") }), want: []string{"else/data", "same namespace"}},
		"another group":     {claim: copyOf("PersistentVolumeClaim", "data", func(c *v1.PersistentVolumeClaim) { c.Spec.DataSource.APIGroup = new("else.io") }), want: []string{"same namespace"}},
		"no such claim":     {claim: copyOf("PersistentVolumeClaim", "none"), want: []string{`"none"`, "does not exist"}},
		"itself":            {claim: copyOf("PersistentVolumeClaim", "copy"), want: []string{"has no volume yet"}},
		"too small": {claim: copyOf("PersistentVolumeClaim", "data", func(c *v1.PersistentVolumeClaim) {
			c.Spec.Resources.Requests = pvbuild.NewClaim("", "1Mi").Spec.Resources.Requests
		}), want: []string{"1Mi", "has 1Gi"}},
		"another mode":         {claim: copyOf("PersistentVolumeClaim", "data", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = new(v1.PersistentVolumeBlock) }), want: []string{"spec.volumeMode", "Filesystem"}},
		"another driver":       {claim: copyOf("PersistentVolumeClaim", "theirs"), prepare: other, want: []string{driverName, "copies only its own"}},
		"a driver that cannot": {claim: copyOf("PersistentVolumeClaim", "data"), driver: func(c *csitest.Capabilities) { c.Clone = false }, want: []string{"CLONE_VOLUME"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			can := csitest.AllCapabilities()
			if tc.driver != nil {
				tc.driver(&can)
			}
			m := newMachine(t, csitest.Config{Capabilities: can})
			m.withData()
			if tc.prepare != nil {
				tc.prepare(t, m)
			}
			m.apply(tc.claim)
			m.idle()
			why := m.why("copy")
			for _, want := range tc.want {
				if !strings.Contains(why, want) {
					t.Errorf("%s, without %q", why, want)
				}
			}
			if made := m.creations(); len(made) > 0 || m.volumeOf("copy") != nil {
				t.Errorf("made %v", made)
			}
			m.delete()
			m.idle()
			if ids := m.volumes(); len(ids) > 0 {
				t.Errorf("a copy that was refused keeps %q", ids)
			}
		})
	}
}

func inNamespace(namespace string) *v1.TypedObjectReference {
	return &v1.TypedObjectReference{Kind: "PersistentVolumeClaim", Name: "data", Namespace: &namespace}
}

// A copy whose source comes later is made then.
func TestCopyWaitsForItsSource(t *testing.T) {
	for _, mode := range []storagev1.VolumeBindingMode{storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer} {
		m := newMachine(t, csitest.Config{})
		class, pod := newClass(), pvbuild.PodOf("copy")
		class.Name, class.VolumeBindingMode, pod.Spec.NodeName = "slow", &mode, "node1"
		m.apply(class, copyOf("PersistentVolumeClaim", "data", pvbuild.OfClass("slow")), pod)
		m.idle()
		m.apply(pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")))
		m.idle()
		if err := m.cluster.Bind(t.Context(), pod); err != nil {
			t.Fatalf("%s: %v; %s", mode, err, m.why("data"))
		}
		if m.volumeOf("copy") == nil || len(m.creations()) != 1 {
			t.Errorf("%s: %s; calls %v", mode, m.why("copy"), m.creations())
		}
	}
}

// A volume without the content is not given to the claim, and does not stay.
func TestCopyWithoutTheContent(t *testing.T) {
	dc := everything()
	dc.Misbehaviours = []csitest.Misbehaviour{csitest.CreatesEmpty}
	b := newBench(t, dc)
	source, err := b.provision(options(nil), nil)
	b.must(err)
	m, err := b.plugin.NewCloner(options(nil, func(o *volume.VolumeOptions) { o.PVName = "pvc-2" }), source)
	b.must(err)
	_, err = m.Provision(t.Context(), nil, nil)
	if ids, _ := b.driver.Volumes(); err == nil || volume.IsUncertain(err) || !strings.Contains(err.Error(), "without the content") || len(ids) != 1 {
		t.Errorf("%v (uncertain: %v), volumes %q", err, volume.IsUncertain(err), ids)
	}
}
