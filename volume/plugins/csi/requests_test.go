package csi_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

func sha256Hex(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func TestAccessModes(t *testing.T) {
	for _, tc := range []struct {
		mode         v1.PersistentVolumeAccessMode
		plain, fully spec.VolumeCapability_AccessMode_Mode
	}{
		{"", spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		{v1.ReadWriteOnce, spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		{v1.ReadWriteOncePod, spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER},
		{v1.ReadOnlyMany, spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY},
		{v1.ReadWriteMany, spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
	} {
		for _, knows := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", tc.mode, knows), func(t *testing.T) {
				dc := everything()
				dc.Capabilities.SingleNodeMultiWriter = knows
				b := newBench(t, dc, csi.Config{})
				s := pvSpec(func(pv *v1.PersistentVolume) {
					pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{tc.mode, v1.ReadWriteMany}
					if tc.mode == "" {
						pv.Spec.AccessModes = nil
					}
				})
				b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}))
				want := map[bool]spec.VolumeCapability_AccessMode_Mode{false: tc.plain, true: tc.fully}[knows]
				if got := lastRequest[*spec.NodeStageVolumeRequest](b, "NodeStageVolume").VolumeCapability.AccessMode.Mode; got != want {
					t.Errorf("staged as %v, want %v", got, want)
				}
				if got := lastRequest[*spec.NodePublishVolumeRequest](b, "NodePublishVolume").VolumeCapability.AccessMode.Mode; got != want {
					t.Errorf("published as %v, want %v", got, want)
				}
			})
		}
	}
}

// What a PersistentVolume says reaches the driver.
func TestRequests(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	b.object(storagev1.CSIDriverSpec{SELinuxMount: new(true)})
	for name, value := range map[string]string{"stage": "for-stage", "publish": "for-publish"} {
		b.host.Add(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "safe", Name: name}, Data: map[string][]byte{"password": []byte(value)}})
	}
	s := pvSpec(func(pv *v1.PersistentVolume) {
		pv.Spec.MountOptions = []string{"noatime"}
		pv.Spec.CSI.VolumeAttributes = map[string]string{"colour": "red"}
		pv.Spec.CSI.FSType = "ext4"
		pv.Spec.CSI.NodeStageSecretRef = &v1.SecretReference{Namespace: "safe", Name: "stage"}
		pv.Spec.CSI.NodePublishSecretRef = &v1.SecretReference{Namespace: "safe", Name: "publish"}
	})
	s.ReadOnly = true
	if can, err := b.plugin.SupportsSELinuxContextMount(t.Context(), s); !can || err != nil {
		t.Errorf("SELinux mounts: %v, %v", can, err)
	}
	gid := int64(os.Getegid())
	b.must(b.setUp(s, pod("u1"), volume.MounterArgs{FsGroup: &gid, SELinuxLabel: "system_u:object_r:t:s0"}))
	stage := lastRequest[*spec.NodeStageVolumeRequest](b, "NodeStageVolume")
	publish := lastRequest[*spec.NodePublishVolumeRequest](b, "NodePublishVolume")
	flags := []string{"noatime", `context="system_u:object_r:t:s0"`}
	for _, c := range []*spec.VolumeCapability{stage.VolumeCapability, publish.VolumeCapability} {
		m := c.GetMount()
		if m.FsType != "ext4" || !slices.Equal(m.MountFlags, flags) || m.VolumeMountGroup != fmt.Sprint(gid) {
			t.Errorf("capability %v", c)
		}
	}
	if stage.Secrets["password"] != "for-stage" || publish.Secrets["password"] != "for-publish" || stage.VolumeContext["colour"] != "red" || publish.VolumeContext["colour"] != "red" {
		t.Errorf("staged with %v, published with %v", stage, publish)
	}
	if !publish.Readonly || publish.StagingTargetPath != b.devicePath(s) || len(publish.VolumeContext) != 1 {
		t.Errorf("published with %v", publish)
	}
	// Each call reads the secret anew.
	b.host.Add(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "safe", Name: "publish"}, Data: map[string][]byte{"password": []byte("changed")}})
	b.must(b.mounter(s, pod("u2")).SetUp(t.Context(), volume.MounterArgs{}))
	if r := lastRequest[*spec.NodePublishVolumeRequest](b, "NodePublishVolume"); r.Secrets["password"] != "changed" {
		t.Errorf("published with %v", r.Secrets)
	}
}

// What a call needs and cannot get is missing before anything is done.
func TestNothingDone(t *testing.T) {
	failing := errors.New("the API server is away")
	for name, tc := range map[string]struct {
		spec    *volume.Spec
		prepare func(*bench)
		is      error
	}{
		"no driver":   {pvSpec(func(pv *v1.PersistentVolume) { pv.Spec.CSI.Driver = "other.io" }), func(*bench) {}, csi.ErrNotRegistered},
		"dead driver": {pvSpec(), func(b *bench) { b.kill() }, csi.ErrUnreachable},
		"no socket":   {pvSpec(), func(b *bench) { b.kill(); os.Remove(b.socket) }, csi.ErrUnreachable},
		"no secret": {pvSpec(func(pv *v1.PersistentVolume) {
			pv.Spec.CSI.NodeStageSecretRef = &v1.SecretReference{Namespace: "safe", Name: "none"}
		}), func(*bench) {}, volume.ErrNotFound},
		"no CSIDriver look-up": {pvSpec(), func(b *bench) {
			b.object(storagev1.CSIDriverSpec{})
			b.drivers[driverName] = failing
		}, failing},
		"no attachment": {pvSpec(), func(b *bench) { b.host.Attachments = lookUp{b.drivers, b.attachments} }, csi.ErrNotAttached},
		"no attachment look-up": {pvSpec(), func(b *bench) {
			b.host.Attachments = lookUp{b.drivers, b.attachments}
			b.attachments["csi-"+sha256Hex("h1"+driverName+"node1")] = failing
		}, failing},
		"another driver": {pvSpec(), func(b *bench) {
			b.kill()
			b.driver.Configure(func(c *csitest.Config) { c.Name = "other.io" })
			b.again()
		}, csi.ErrOtherDriver},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, everything(), csi.Config{})
			tc.prepare(b)
			err := b.setUp(tc.spec, pod("u1"), volume.MounterArgs{})
			if wantUncertain(t, err, false); !errors.Is(err, tc.is) {
				t.Errorf("%v is not %v", err, tc.is)
			}
			b.wantMethods()
			b.wantNothing()
		})
	}
}

func TestAttachmentMetadata(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	b.host.Attachments = lookUp{b.drivers, b.attachments}
	a := &storagev1.VolumeAttachment{}
	b.attachments["csi-"+sha256Hex("h1"+driverName+"node1")] = a
	a.Status.AttachError = &storagev1.VolumeError{Message: "no slot is free"}
	err := b.setUp(pvSpec(), pod("u1"), volume.MounterArgs{})
	if wantUncertain(t, err, false); !strings.Contains(err.Error(), "no slot is free") {
		t.Errorf("%v", err)
	}
	a.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"slot": "7"}}
	b.must(b.setUp(pvSpec(), pod("u1"), volume.MounterArgs{}))
	if r := lastRequest[*spec.NodeStageVolumeRequest](b, "NodeStageVolume"); r.PublishContext["slot"] != "7" {
		t.Errorf("staged with %v", r.PublishContext)
	}
	if r := lastRequest[*spec.NodePublishVolumeRequest](b, "NodePublishVolume"); r.PublishContext["slot"] != "7" {
		t.Errorf("published with %v", r.PublishContext)
	}
	a.DeletionTimestamp = new(metav1.Now())
	if err := b.setUp(pvSpec(), pod("u2"), volume.MounterArgs{}); !errors.Is(err, csi.ErrNotAttached) {
		t.Errorf("%v", err)
	}
	// A driver that does not attach needs none.
	b.object(storagev1.CSIDriverSpec{AttachRequired: new(false)})
	b.must(b.setUp(pvSpec(), pod("u2"), volume.MounterArgs{}))
}

func TestServiceAccountTokens(t *testing.T) {
	for _, inSecrets := range []bool{false, true} {
		b := newBench(t, everything(), csi.Config{Republish: time.Hour})
		b.object(storagev1.CSIDriverSpec{RequiresRepublish: new(true), ServiceAccountTokenInSecrets: &inSecrets,
			TokenRequests: []storagev1.TokenRequest{{Audience: "vault", ExpirationSeconds: new(int64(1200))}, {Audience: ""}}})
		s := pvSpec()
		m := b.mounter(s, pod("u1"))
		b.must(b.mountDevice(s, volume.DeviceMounterArgs{}), m.SetUp(t.Context(), volume.MounterArgs{}))
		r := lastRequest[*spec.NodePublishVolumeRequest](b, "NodePublishVolume")
		const key = "csi.storage.k8s.io/serviceAccount.tokens"
		text, other := r.VolumeContext[key], r.Secrets[key]
		if inSecrets {
			text, other = other, text
		}
		var told map[string]struct{ Token, ExpirationTimestamp string }
		if err := json.Unmarshal([]byte(text), &told); err != nil || other != "" || len(told) != 2 || told["vault"].Token == "" || told["vault"].Token == told[""].Token {
			t.Errorf("in secrets %v: %q and %q, %v", inSecrets, text, other, err)
		}
		if _, err := time.Parse(time.RFC3339, told["vault"].ExpirationTimestamp); err != nil {
			t.Error(err)
		}
		// The token of 20 minutes is due before the hour.
		if in := time.Until(volume.RefreshAfter(m)); in < 15*time.Minute || in > 17*time.Minute {
			t.Errorf("due in %v", in)
		}
		// Republished, it has the same tokens until they are due.
		b.must(m.SetUp(t.Context(), volume.MounterArgs{}))
		again := lastRequest[*spec.NodePublishVolumeRequest](b, "NodePublishVolume")
		if again.VolumeContext[key] != r.VolumeContext[key] || again.Secrets[key] != r.Secrets[key] || len(b.driver.CallsOf("NodePublishVolume")) != 2 {
			t.Errorf("published again with %v", again)
		}
		// An error of the driver does not tell them.
		token := told["vault"].Token
		b.driver.Inject(csitest.Fault{Match: csitest.Method("NodePublishVolume"), Err: status.Error(codes.Internal, "bad token "+token)})
		if err := m.SetUp(t.Context(), volume.MounterArgs{}); err == nil || strings.Contains(err.Error(), token) || !strings.Contains(err.Error(), "bad token ***") {
			t.Errorf("%v", err)
		}
	}
}

func TestNodeExpand(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	s := pvSpec()
	b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}))
	o := volume.NodeResizeOptions{VolumeSpec: s, DeviceMountPath: b.mounter(s, pod("u1")).GetPath(), DeviceStagePath: b.devicePath(s), NewSize: resource.MustParse("1Mi")}
	if done, err := b.plugin.NodeExpand(t.Context(), o); !done || err != nil {
		t.Errorf("NodeExpand = %v, %v", done, err)
	}
	r := lastRequest[*spec.NodeExpandVolumeRequest](b, "NodeExpandVolume")
	if r.CapacityRange.RequiredBytes != 1<<20 || r.VolumePath != o.DeviceMountPath || r.StagingTargetPath != o.DeviceStagePath || r.VolumeCapability.GetMount() == nil {
		t.Errorf("expanded with %v", r)
	}
	for code, want := range map[codes.Code]error{
		codes.FailedPrecondition: volume.ErrResizeInUse, codes.OutOfRange: volume.ErrResizeInfeasible,
		codes.InvalidArgument: volume.ErrResizeInfeasible, codes.NotFound: volume.ErrResizeInfeasible, codes.Internal: csi.ErrRefused,
	} {
		remove := b.driver.Inject(csitest.Fault{Match: csitest.Method("NodeExpandVolume"), Err: status.Error(code, "no")})
		if done, err := b.plugin.NodeExpand(t.Context(), o); done || !errors.Is(err, want) {
			t.Errorf("%v: %v, %v, want %v", code, done, err, want)
		}
		remove()
	}
	n := len(b.driver.CallsOf("NodeExpandVolume"))
	b.kill()
	b.driver.Configure(func(c *csitest.Config) { c.Capabilities.Stage = false })
	b.again()
	staged := o
	staged.DeviceMountPath = o.DeviceStagePath
	if done, err := b.plugin.NodeExpand(t.Context(), staged); done || err != nil || len(b.driver.CallsOf("NodeExpandVolume")) != n {
		t.Errorf("of a driver that does not stage, before it is published: %v, %v", done, err)
	}
	if done, err := b.plugin.NodeExpand(t.Context(), o); !done || err != nil {
		t.Errorf("of a driver that does not stage: %v, %v", done, err)
	}
	if r := lastRequest[*spec.NodeExpandVolumeRequest](b, "NodeExpandVolume"); r.StagingTargetPath != "" || r.VolumePath != o.DeviceMountPath {
		t.Errorf("expanded with %v", r)
	}
	n++
	b.kill()
	b.driver.Configure(func(c *csitest.Config) { c.Capabilities.Stage, c.Capabilities.Expand = true, false })
	b.again()
	if done, err := b.plugin.NodeExpand(t.Context(), o); !done || err != nil || len(b.driver.CallsOf("NodeExpandVolume")) != n {
		t.Errorf("of a driver that does not expand: %v, %v", done, err)
	}
	b.must(b.tearDown(s, "u1"))
}

func TestFSGroup(t *testing.T) {
	gid := int64(os.Getegid())
	for name, tc := range map[string]struct {
		policy   storagev1.FSGroupPolicy
		fsType   string
		modes    []v1.PersistentVolumeAccessMode
		readOnly bool
		driver   bool // has VOLUME_MOUNT_GROUP
		want     bool
	}{
		"none":                         {storagev1.NoneFSGroupPolicy, "ext4", []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, false, false, false},
		"file":                         {storagev1.FileFSGroupPolicy, "", []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}, false, false, true},
		"file, read-only":              {storagev1.FileFSGroupPolicy, "", []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, true, false, false},
		"once":                         {storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, "ext4", []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, false, false, true},
		"once for a pod":               {storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, "ext4", []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}, false, false, true},
		"once, among others":           {storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, "ext4", []v1.PersistentVolumeAccessMode{v1.ReadWriteMany, v1.ReadWriteOnce}, false, false, true},
		"once, without a type":         {storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, "", []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, false, false, false},
		"many":                         {storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, "ext4", []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}, false, false, false},
		"once, read-only":              {storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, "ext4", []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, true, false, false},
		"file, but the driver does it": {storagev1.FileFSGroupPolicy, "", []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, false, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			dc := everything()
			dc.Capabilities.VolumeMountGroup = tc.driver
			b := newBench(t, dc, csi.Config{})
			b.object(storagev1.CSIDriverSpec{FSGroupPolicy: &tc.policy})
			s := pvSpec(func(pv *v1.PersistentVolume) { pv.Spec.AccessModes, pv.Spec.CSI.FSType = tc.modes, tc.fsType })
			s.ReadOnly = tc.readOnly
			data, err := b.driver.AddVolume("h1", 0, csitest.Directory)
			b.must(err, os.WriteFile(filepath.Join(data, "file"), nil, 0o600))
			b.must(b.setUp(s, pod("u1"), volume.MounterArgs{FsGroup: &gid}))
			info, err := os.Stat(filepath.Join(data, "file"))
			if b.must(err); (info.Mode().Perm() == 0o660) != tc.want {
				t.Errorf("the file is %v", info.Mode())
			}
			b.must(b.tearDown(s, "u1"))
			b.wantNothing()
		})
	}
}

// What is to be done about a secret that is missing is said.
func TestMissingSecret(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	s := pvSpec(func(pv *v1.PersistentVolume) {
		pv.Spec.CSI.NodeStageSecretRef = &v1.SecretReference{Namespace: "safe", Name: "none"}
	})
	if err := b.setUp(s, pod("u1"), volume.MounterArgs{}); !errors.Is(err, volume.ErrNotFound) || !strings.Contains(err.Error(), "safe/none for NodeStageVolume is missing") || !strings.Contains(err.Error(), "create it") {
		t.Errorf("%v", err)
	}
	b.wantNothing()
}

// A manifest without a policy means the API's default, which an API server would have set. A
// policy that nobody knows is refused before anything is done.
func TestFSGroupPolicies(t *testing.T) {
	empty := storagev1.FSGroupPolicy("")
	for name, spec := range map[string]storagev1.CSIDriverSpec{"none": {AttachRequired: new(false)}, "empty": {FSGroupPolicy: &empty}} {
		t.Run(name, func(t *testing.T) {
			b, gid := newBench(t, csitest.Config{}, csi.Config{}), int64(os.Getegid())
			b.object(spec)
			s := pvSpec(func(pv *v1.PersistentVolume) { pv.Spec.CSI.FSType = "ext4" })
			data, err := b.driver.AddVolume("h1", 0, csitest.Directory)
			b.must(err, os.WriteFile(filepath.Join(data, "file"), nil, 0o600))
			b.must(b.setUp(s, pod("u1"), volume.MounterArgs{FsGroup: &gid}))
			if info, err := os.Stat(filepath.Join(data, "file")); err != nil || info.Mode().Perm() != 0o660 {
				t.Errorf("the file is %v, %v", info, err)
			}
			b.must(b.tearDown(s, "u1"))
			b.wantNothing()
		})
	}
	t.Run("unknown", func(t *testing.T) {
		b, sometimes := newBench(t, csitest.Config{}, csi.Config{}), storagev1.FSGroupPolicy("Sometimes")
		b.object(storagev1.CSIDriverSpec{FSGroupPolicy: &sometimes})
		_, err := b.driver.AddVolume("h1", 0, csitest.Directory)
		b.must(err)
		err = b.setUp(pvSpec(), pod("u1"), volume.MounterArgs{})
		_, invalid := errors.AsType[*volume.InvalidSpecError](err)
		for _, want := range []string{driverName, `"Sometimes"`, "ReadWriteOnceWithFSType File None"} {
			if !invalid || !strings.Contains(err.Error(), want) {
				t.Errorf("%v; want %s", err, want)
			}
		}
		b.wantNothing()
		if _, err := csi.New(csi.Config{Defaults: map[string]storagev1.CSIDriverSpec{driverName: {FSGroupPolicy: &sometimes}}}); err == nil || !strings.Contains(err.Error(), `"Sometimes"`) {
			t.Errorf("as a default: %v", err)
		}
	})
}

// A process that ends while files are given to a group is made up for by the next one.
func TestFSGroupIsFinishedLater(t *testing.T) {
	b := newBench(t, csitest.Config{Capabilities: csitest.Capabilities{Stage: true}}, csi.Config{})
	b.object(storagev1.CSIDriverSpec{FSGroupPolicy: new(storagev1.FileFSGroupPolicy)})
	s, bad, gid := pvSpec(), int64(-1), int64(os.Getegid())
	data, err := b.driver.AddVolume("h1", 0, csitest.Directory)
	b.must(err, os.WriteFile(filepath.Join(data, "file"), nil, 0o600))
	wantUncertain(t, b.setUp(s, pod("u1"), volume.MounterArgs{FsGroup: &bad}), true) // it is mounted
	b.restart()
	b.must(b.mounter(s, pod("u1")).SetUp(t.Context(), volume.MounterArgs{FsGroup: &gid}))
	if info, err := os.Stat(filepath.Join(data, "file")); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the file is %v, %v", info, err)
	}
	// And it is done once.
	b.must(os.Chmod(filepath.Join(data, "file"), 0o600), b.mounter(s, pod("u1")).SetUp(t.Context(), volume.MounterArgs{FsGroup: &gid}))
	if info, err := os.Stat(filepath.Join(data, "file")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", info, err)
	}
	b.wantMethods("NodeStageVolume", "NodePublishVolume")
	b.must(b.tearDown(s, "u1"))
	b.wantNothing()
}
