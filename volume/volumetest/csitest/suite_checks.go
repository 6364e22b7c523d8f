package csitest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// order: staged, published, unpublished, unstaged, each once, and the data outlives that.
func (k *check) order() {
	k.begin()
	path := k.setUp(pod("u1"))
	if err := os.WriteFile(filepath.Join(path, "file"), []byte("data"), 0o600); err != nil {
		k.wrong("writing: %v", err)
	}
	k.tearDown("u1")
	k.wantMethods("Stage", "Publish", "Unpublish", "Unstage")
	k.wantNothing()
	path = k.setUp(pod("u2"))
	if data, err := os.ReadFile(filepath.Join(path, "file")); string(data) != "data" || err != nil {
		k.wrong("the next pod reads %q, %v", data, err)
	}
	k.tearDown("u2")
}

// shared: the pods of a node share what is staged once.
func (k *check) shared() {
	k.begin()
	k.setUp(pod("u1"))
	k.setUp(pod("u2"))
	k.tearDown("u1")
	k.wantMethods("Stage", "Publish", "Publish", "Unpublish")
	k.tearDown("u2")
	k.wantMethods("Stage", "Publish", "Publish", "Unpublish", "Unpublish", "Unstage")
	k.wantNothing()
}

// inline: a pod's own volume is published only, with the pod's information.
func (k *check) inline() {
	k.asInline()
	k.begin()
	for _, uid := range []string{"u1", "u2"} {
		k.setUp(inlinePod(types.UID(uid)))
		r := k.lastPublish()
		if r.VolumeContext["csi.storage.k8s.io/ephemeral"] != "true" || r.VolumeContext["csi.storage.k8s.io/pod.uid"] != uid || r.StagingTargetPath != "" {
			k.wrong("published with %v", r)
		}
	}
	if ids, err := k.driver.Volumes(); len(ids) != 2 || err != nil {
		k.wrong("two pods have the volumes %v, %v", ids, err)
	}
	k.tearDown("u1")
	k.tearDown("u2")
	k.wantMethods("Publish", "Publish", "Unpublish", "Unpublish")
	k.wantNothing()
}

func (k *check) lastPublish() *csi.NodePublishVolumeRequest {
	calls := k.driver.CallsOf("NodePublishVolume")
	if len(calls) == 0 {
		return &csi.NodePublishVolumeRequest{}
	}
	return calls[len(calls)-1].Request.(*csi.NodePublishVolumeRequest)
}

// readOnly: a pod that reads only cannot write, and another one can.
func (k *check) readOnly() {
	k.begin()
	p := pod("u1")
	p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	path := k.setUp(p)
	if err := os.WriteFile(filepath.Join(path, "file"), nil, 0o600); !errors.Is(err, unix.EROFS) || !k.lastPublish().Readonly {
		k.wrong("writing to a read-only volume: %v", err)
	}
	if err := os.WriteFile(filepath.Join(k.setUp(pod("u2")), "file"), nil, 0o600); err != nil {
		k.wrong("writing: %v", err)
	}
	k.tearDown("u1")
	k.tearDown("u2")
	k.wantNothing()
}

// secrets: each call gets its own.
func (k *check) secrets() {
	for name, ref := range map[string]**v1.SecretReference{"stage": &k.pv.Spec.CSI.NodeStageSecretRef, "publish": &k.pv.Spec.CSI.NodePublishSecretRef} {
		*ref = &v1.SecretReference{Namespace: "safe", Name: name}
		k.node.Objects = append(k.node.Objects, &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "safe", Name: name, UID: types.UID(name + "-uid")}, Data: map[string][]byte{"for": []byte(name)}})
	}
	k.begin()
	k.setUp(pod("u1"))
	for _, c := range k.driver.CallsOf("NodeStageVolume") {
		if got := c.Request.(*csi.NodeStageVolumeRequest).Secrets["for"]; got != "stage" {
			k.wrong("staged with the secret %q", got)
		}
	}
	if got := k.lastPublish().Secrets["for"]; got != "publish" {
		k.wrong("published with the secret %q", got)
	}
	k.tearDown("u1")
	k.wantNothing()
}

// fsGroup: files are given to the pod's group where the policy says so, and a driver that can
// does so itself.
func (k *check) fsGroup() {
	data, err := k.driver.AddVolume("h1", 0, Directory)
	if err != nil {
		k.t.Fatal(err)
	}
	k.describe(storagev1.CSIDriverSpec{})
	described := k.node.Objects[len(k.node.Objects)-1].(*storagev1.CSIDriver)
	for _, row := range fsGroupRows() {
		k.driver.Configure(func(c *Config) { c.Capabilities.VolumeMountGroup = row.driver })
		described.Spec.FSGroupPolicy, k.pv.Spec.CSI.FSType = &row.policy, row.fsType
		k.accessedBy(row.mode)
		if err := errors.Join(os.WriteFile(filepath.Join(data, "file"), nil, 0o600), os.Chmod(filepath.Join(data, "file"), 0o600)); err != nil {
			k.t.Fatal(err)
		}
		k.begin()
		p, group := pod("u1"), strconv.Itoa(os.Getegid())
		p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: new(int64(os.Getegid()))}
		p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = row.readOnly
		want := os.FileMode(0o600)
		if row.given {
			want = 0o660
		}
		if info, err := os.Stat(filepath.Join(k.setUp(p), "file")); err != nil || info.Mode().Perm() != want {
			k.wrong("%+v: the file is %v, %v", row, info, err)
		}
		if got := k.lastPublish().GetVolumeCapability().GetMount().GetVolumeMountGroup(); got != group && row.driver || got != "" && !row.driver {
			k.wrong("%+v: published for the group %q", row, got)
		}
		k.tearDown("u1")
		k.wantNothing()
		k.caller.Kill()
	}
}

// fsGroupRow is one case of the API's rules for CSIDriver.spec.fsGroupPolicy. driver: it gives
// volumes to groups itself. given: the caller does.
type fsGroupRow struct {
	policy                  storagev1.FSGroupPolicy
	fsType                  string
	mode                    v1.PersistentVolumeAccessMode
	readOnly, driver, given bool
}

func fsGroupRows() []fsGroupRow {
	const file, once, none = storagev1.FileFSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, storagev1.NoneFSGroupPolicy
	return []fsGroupRow{
		{none, "ext4", v1.ReadWriteOnce, false, false, false},
		{file, "", v1.ReadWriteMany, false, false, true},
		{file, "ext4", v1.ReadWriteOnce, true, false, false},
		{file, "", v1.ReadWriteMany, false, true, false},
		{once, "ext4", v1.ReadWriteOnce, false, false, true},
		{once, "ext4", v1.ReadWriteOncePod, false, false, true},
		{once, "", v1.ReadWriteOnce, false, false, false},
		{once, "ext4", v1.ReadWriteMany, false, false, false},
		{once, "ext4", v1.ReadWriteOnce, true, false, false},
	}
}

// accessedBy makes volume and claim those of an access mode.
func (k *check) accessedBy(mode v1.PersistentVolumeAccessMode) {
	k.pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{mode}
	for _, o := range k.node.Objects {
		if claim, ok := o.(*v1.PersistentVolumeClaim); ok {
			claim.Spec.AccessModes = k.pv.Spec.AccessModes
		}
	}
}

// methodsOf a volume's life.
func methodsOfLife() []string {
	return []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"}
}

// inDoubt: a call that may have been done is undone or done again, and not forgotten.
func (k *check) inDoubt() {
	k.begin()
	for _, code := range []codes.Code{codes.DeadlineExceeded, codes.Unavailable, codes.Aborted} {
		for _, method := range methodsOfLife() {
			for _, after := range []bool{false, true} {
				remove := k.driver.Inject(Fault{Match: Method(method), Nth: 1, After: after, Err: status.Error(code, "injected")})
				k.setUp(pod("u1"))
				k.tearDown("u1")
				remove()
				k.wantNothing()
			}
		}
	}
}

// refused: a call that was not done is tried again, and nothing is undone.
func (k *check) refused() {
	k.begin()
	for _, method := range methodsOfLife() {
		k.driver.ResetCalls()
		remove := k.driver.Inject(Fault{Match: Method(method), Nth: 1, Err: status.Error(codes.Internal, "injected")})
		k.setUp(pod("u1"))
		k.tearDown("u1")
		remove()
		want := []string{}
		for _, m := range methodsOfLife() {
			short := m[len("Node") : len(m)-len("Volume")]
			if want = append(want, short); m == method {
				want = append(want, short)
			}
		}
		k.wantMethods(want...)
		k.wantNothing()
	}
}

// unstaging: a pod that comes while a volume is being unstaged, or after that has failed, has it
// staged anew. The driver notes it where it is published without.
func (k *check) unstaging() {
	k.begin()
	for _, code := range []codes.Code{codes.OK, codes.InvalidArgument, codes.DeadlineExceeded} {
		for _, after := range []bool{false, true} {
			unstaging, release := make(chan struct{}), make(chan struct{})
			remove := k.driver.Inject(Fault{Match: Method("NodeUnstageVolume"), Nth: 1, After: after, Err: status.Error(code, "injected"),
				Hook: func() { close(unstaging); <-release }})
			k.setUp(pod("u1"))
			down, up := make(chan struct{}), make(chan struct{})
			go func() { defer close(down); k.tearDown("u1") }()
			<-unstaging
			go func() { defer close(up); k.setUp(pod("u2")) }()
			close(release)
			<-down
			<-up
			k.tearDown("u2")
			remove()
			k.wantNothing()
		}
	}
}

// limits: a volume for which the node has no room is refused to its pod, and not published. It
// may be staged all the same, so that it is unstaged. It is set up once there is room.
func (k *check) limits() {
	k.begin()
	ctx, cancel := context.WithCancel(k.t.Context())
	defer cancel()
	remove := k.driver.Inject(Fault{Match: Method("NodeStageVolume"), After: true, Hook: cancel, Err: status.Error(codes.ResourceExhausted, "the node has its volumes")})
	if paths, err := k.caller.SetUp(ctx, pod("u1")); err == nil {
		k.wrong("SetUp on a full node = %v without an error", paths)
	}
	k.tearDown("u1")
	if calls := k.driver.CallsOf("NodePublishVolume"); len(calls) > 0 {
		k.wrong("a volume that may not be staged is published: %v", calls)
	}
	k.wantNothing()
	remove()
	k.setUp(pod("u2"))
	k.tearDown("u2")
	k.wantNothing()
}

// levels labels files by the level alone.
type levels struct{}

// FileLabel implements [Labels].
func (levels) FileLabel(o *v1.SELinuxOptions) (string, error) {
	if o == nil || o.Level == "" {
		return "", nil
	}
	return "system_u:object_r:container_file_t:" + o.Level, nil
}

// seLinux: a driver that can gets the label of a pod's files as an option of its mounts, and
// none where the pod has no label.
func (k *check) seLinux() {
	k.describe(storagev1.CSIDriverSpec{SELinuxMount: new(true)})
	k.node.Labels = levels{}
	k.accessedBy(v1.ReadWriteOncePod)
	k.begin()
	for level, want := range map[string][]string{"s0:c1,c2": {`context="system_u:object_r:container_file_t:s0:c1,c2"`}, "": nil} {
		p := pod(types.UID("u" + level[:min(len(level), 2)]))
		p.Spec.SecurityContext = &v1.PodSecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: level}}
		k.driver.ResetCalls()
		k.setUp(p)
		calls := k.driver.CallsOf("NodeStageVolume", "NodePublishVolume")
		for _, c := range calls {
			r := c.Request.(interface{ GetVolumeCapability() *csi.VolumeCapability })
			if got := r.GetVolumeCapability().GetMount().GetMountFlags(); !slices.Equal(got, want) {
				k.wrong("%s of a pod with the level %q has the options %q", c.Method, level, got)
			}
		}
		if len(calls) != 2 {
			k.wrong("the calls are %v", k.methods())
		}
		k.tearDown(p.UID)
	}
	k.wantNothing()
}

// reboot: mounts are gone, directories are there. The volume is staged again before the
// pod gets it, and never the directory beneath.
func (k *check) reboot() {
	k.begin()
	k.setUp(pod("u1"))
	k.caller.Kill()
	k.unmountAll()
	if err := k.driver.Reboot(); err != nil {
		k.t.Fatal(err)
	}
	k.begin()
	path := k.setUp(pod("u1"))
	if mounts, err := k.mounts(); err != nil || len(mounts) != 2 {
		k.wrong("mounted after a reboot: %v, %v; the volume is at %s", mounts, err, path)
	}
	k.wantMethods("Stage", "Publish", "Stage", "Publish")
	k.tearDown("u1")
	k.wantNothing()
}
