package csitest

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// issuer makes tokens that say for which audience and pod they are.
type issuer struct{}

// RequestToken implements volume.TokenRequester.
func (issuer) RequestToken(_ context.Context, namespace, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	answer := r.DeepCopy()
	for _, audience := range r.Spec.Audiences {
		answer.Status.Token += audience
	}
	answer.Status.Token += " for " + namespace + "/" + account
	if r.Spec.BoundObjectRef != nil {
		answer.Status.Token += " of " + string(r.Spec.BoundObjectRef.UID)
	}
	answer.Status.ExpirationTimestamp = metav1.NewTime(time.Now().Add(time.Hour))
	return answer, nil
}

const tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

// tokens: a driver that asks for service account tokens gets those of the pod, bound to
// it, and only for its audiences.
func (k *check) tokens() {
	k.describe(storagev1.CSIDriverSpec{TokenRequests: []storagev1.TokenRequest{{Audience: "vault"}}})
	k.node.Tokens = issuer{}
	k.begin()
	p := pod("u1")
	p.Spec.ServiceAccountName = "seller"
	k.setUp(p)
	r := k.lastPublish()
	var told map[string]struct{ Token, ExpirationTimestamp string }
	err := json.Unmarshal([]byte(r.VolumeContext[tokensKey]), &told)
	if err != nil || len(told) != 1 || told["vault"].Token != "vault for shop/seller of u1" || told["vault"].ExpirationTimestamp == "" || r.Secrets[tokensKey] != "" {
		k.wrong("published with the tokens %q, and %q among the secrets: %v", r.VolumeContext[tokensKey], r.Secrets[tokensKey], err)
	}
	k.tearDown("u1")
	k.wantNothing()
}

// registration: a pod that waits for a driver gets its volume once the driver has
// registered itself, and keeps it when the registration goes.
func (k *check) registration() {
	k.node.RegistryDir = filepath.Join(filepath.Dir(k.node.Drivers[DefaultName]), "registry")
	socket := k.node.Drivers[DefaultName]
	k.node.Drivers = nil
	if err := os.Mkdir(k.node.RegistryDir, 0o750); err != nil {
		k.t.Fatal(err)
	}
	k.begin()
	r := &Registrar{Name: DefaultName, Endpoint: socket}
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.setUp(pod("u1"))
	}()
	if err := r.Start(filepath.Join(k.node.RegistryDir, "reg.sock")); err != nil {
		k.t.Fatal(err)
	}
	defer r.Kill()
	<-done
	k.await(r.Told(), 1)
	if statuses := r.Statuses(); !slices.Equal(statuses, []string{"registered"}) {
		k.wrong("the registrar was told %q", statuses)
	}
	k.tearDown("u1")
	k.wantMethods("Stage", "Publish", "Unpublish", "Unstage")
	k.wantNothing()
}

// republish: a driver that requires it gets NodePublishVolume again and again, and its
// failure then leaves the volume to the pod.
func (k *check) republish() { k.republished(pod("u1")) }

func (k *check) republished(p *v1.Pod) {
	k.describe(storagev1.CSIDriverSpec{RequiresRepublish: new(true)})
	k.node.Republish = 20 * time.Millisecond
	published := make(chan struct{}, 1)
	defer k.driver.Inject(Fault{Match: Method("NodePublishVolume"), After: true, Hook: func() {
		select {
		case published <- struct{}{}:
		default:
		}
	}})()
	k.begin()
	k.setUp(p)
	mounts, err := k.mounts()
	k.await(published, 3)
	defer k.driver.Inject(Fault{Match: Method("NodePublishVolume"), Nth: 1, Err: status.Error(codes.Unknown, "injected")})()
	k.await(published, 3)
	if again, againErr := k.mounts(); err != nil || againErr != nil || !slices.Equal(again, mounts) {
		k.wrong("mounted is %v, and after it was published again %v; %v, %v", mounts, again, err, againErr)
	}
	k.tearDown("u1")
	if unpublished := k.driver.CallsOf("NodeUnpublishVolume", "NodeUnstageVolume"); len(unpublished) != 2 {
		k.wrong("a volume that was published again is undone by %v", unpublished)
	}
	k.wantNothing()
}

// await takes n events.
func (k *check) await(events <-chan struct{}, n int) {
	k.t.Helper()
	ctx, cancel := k.patience()
	defer cancel()
	for range n {
		select {
		case <-events:
		case <-ctx.Done():
			k.wrong("what the caller must do has not come")
			return
		}
	}
}

// asBlock makes the volume one of mode Block on a loop device, which only root has.
func (k *check) asBlock() bool {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		k.absent = true
		k.t.Logf("without loop devices there is no block volume: %v", err)
		return false
	}
	control.Close()
	k.driver.Configure(func(c *Config) { c.Disk = Loop })
	k.pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock)
	for _, o := range k.node.Objects {
		if claim, ok := o.(*v1.PersistentVolumeClaim); ok {
			claim.Spec.VolumeMode = k.pv.Spec.VolumeMode
		}
	}
	return true
}

// blockPod has the claim as a device.
func blockPod(p *v1.Pod) *v1.Pod {
	c := &p.Spec.Containers[0]
	c.VolumeMounts, c.VolumeDevices = nil, []v1.VolumeDevice{{Name: "data", DevicePath: "/dev/data"}}
	return p
}

// block: two pods share a device, which is staged once.
func (k *check) block() {
	if !k.asBlock() {
		return
	}
	k.begin()
	for _, p := range []*v1.Pod{blockPod(pod("u1")), blockPod(pod("u2"))} {
		path := k.setUp(p)
		if info, err := os.Stat(path); err != nil || info.Mode().Type() != fs.ModeDevice {
			k.wrong("the device of pod %s is %v, %v", p.UID, info, err)
		}
		if r := k.lastPublish(); r.VolumeCapability.GetBlock() == nil || r.StagingTargetPath == "" {
			k.wrong("published with %v", r)
		}
	}
	k.tearDown("u1")
	k.wantMethods("Stage", "Publish", "Publish", "Unpublish")
	k.tearDown("u2")
	k.wantMethods("Stage", "Publish", "Publish", "Unpublish", "Unpublish", "Unstage")
	k.wantNothing()
}

// blockRepublish: a block volume is published again as well.
func (k *check) blockRepublish() {
	if k.asBlock() {
		k.republished(blockPod(pod("u1")))
	}
}
