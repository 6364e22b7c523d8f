package persistentvolume_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/objectstest"
	"github.com/podvol/podvol/volume/persistentvolume"
)

const besideName = "made.example.com"

func madeBeside(c *storagev1.StorageClass) { c.Provisioner = besideName }

// beside gives the world's controllers the provisioner only, and has another one
// that binds, protects and keeps phases, and that leaves provisioners to others, as
// kube-controller-manager's does.
func (w *world) beside() *world {
	w.withStorage()
	w.config.Provisioners = map[string]string{besideName: storagePlugin}
	client := w.connect()
	closeClient := w.close
	binder := persistentvolume.NewController(persistentvolume.ControllerConfig{Objects: client})
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- binder.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("the binder's Run: %v", err)
		}
		closeClient()
	})
	return w
}

func TestProvisioningBesideAnotherController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("made", madeBeside), pvbuild.NewClaim("data", "2Gi", pvbuild.OfClass("made"))).beside()
		w.start()
		w.settle()
		w.wantBound("data", "pvc-uid-data")
		pv, c := w.pv("pvc-uid-data"), w.claim("data")
		if pv.Annotations["pv.kubernetes.io/provisioned-by"] != besideName || pv.Annotations["pv.kubernetes.io/bound-by-controller"] != "" ||
			!slices.Contains(pv.Finalizers, "external-provisioner.volume.kubernetes.io/finalizer") || slices.Contains(pv.Finalizers, "kubernetes.io/pv-controller") {
			t.Errorf("the volume's annotations are %v, its finalizers %v", pv.Annotations, pv.Finalizers)
		}
		if slices.Contains(c.Finalizers, "podvol.io/provisioning") || c.Annotations["podvol.io/provisioning"] != "" {
			t.Errorf("the claim's annotations are %v, its finalizers %v", c.Annotations, c.Finalizers)
		}
		w.delete("PersistentVolumeClaim", "ops", "data")
		w.settle()
		w.wantGone("PersistentVolume", "", "pvc-uid-data")
		if left := w.stored(); len(left) > 0 {
			t.Errorf("storage is left: %v", left)
		}
		w.events.want(t, `data: Normal Provisioning External provisioner is provisioning volume for claim "ops/data"`)
		w.events.want(t, "data: Normal ProvisioningSucceeded Successfully provisioned volume pvc-uid-data using made.example.com")
		if n := w.events.count(""); n != 2 {
			t.Errorf("%d events, want 2: %s", n, w.events)
		}
		for _, call := range w.client.Calls() {
			if call.Verb == "update status" {
				t.Errorf("it has written the status of %s", call.Ref)
			}
		}
	})
}

// What is not given to it by name is not its own, whatever its plugins could do.
func TestWhatIsSomebodyElsesStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := func(by string) pvbuild.ClaimOption {
			return func(c *v1.PersistentVolumeClaim) {
				metav1.SetMetaDataAnnotation(&c.ObjectMeta, "volume.kubernetes.io/storage-provisioner", by)
			}
		}
		theirs := storageClass("theirs")
		theirs.Provisioner = "other.example.com"
		released := pvbuild.NewPV("released", "1Gi", withPolicy(v1.PersistentVolumeReclaimDelete), pvbuild.ForClaim("former", "former"), pvbuild.InPhase(v1.VolumeReleased))
		foreign := released.DeepCopy()
		foreign.Name = "foreign"
		metav1.SetMetaDataAnnotation(&foreign.ObjectMeta, "pv.kubernetes.io/provisioned-by", "other.example.com")
		kept := released.DeepCopy()
		kept.Name, kept.Spec.PersistentVolumeReclaimPolicy = "kept", v1.PersistentVolumeReclaimRetain
		metav1.SetMetaDataAnnotation(&kept.ObjectMeta, "pv.kubernetes.io/provisioned-by", besideName)
		taken := kept.DeepCopy() // whoever binds has not noticed yet, or is wrong
		taken.Name, taken.Spec.PersistentVolumeReclaimPolicy = "taken", v1.PersistentVolumeReclaimDelete
		pvbuild.ForClaim("plain", "uid-plain")(taken)
		w := newWorld(t, theirs, storageClass("made", madeBeside), storageClass("waits", madeBeside, waitForConsumer), released, foreign, kept, taken, pvbuild.NewPV("free", "1Gi"),
			pvbuild.NewClaim("plain", "1Gi"), pvbuild.NewClaim("theirs", "1Gi", pvbuild.OfClass("theirs"), asked("other.example.com")),
			pvbuild.NewClaim("not-asked", "1Gi", pvbuild.OfClass("made")), pvbuild.NewClaim("stale", "1Gi", pvbuild.OfClass("theirs"), asked(besideName)),
			pvbuild.NewClaim("waits", "1Gi", pvbuild.OfClass("waits"), asked(besideName)), ephemeralPod()).withStorage()
		w.config.Provisioners = map[string]string{besideName: storagePlugin}
		w.start()
		w.settle()
		for _, call := range w.client.Calls() {
			if call.Verb != "get" && call.Verb != "list" {
				t.Errorf("%s %s", call.Verb, call.Ref)
			}
		}
		if w.storage.asked() > 0 || w.events.count("") > 0 {
			t.Errorf("the plugin was asked %d times; events: %s", w.storage.asked(), w.events)
		}
	})
}

func ephemeralPod() *v1.Pod {
	pod := pvbuild.PodOf()
	pod.Spec.Volumes = []v1.Volume{{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{
		Spec: pvbuild.NewClaim("", "1Gi").Spec}}}}}
	return pod
}

func TestWaitingForConsumersBesideAnotherController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("waits", madeBeside, waitForConsumer), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("waits")),
			&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{v1.LabelHostname: "n1"}}}).beside()
		w.startFailing(volume.NothingDone(errors.New("n1 is full")))
		w.settle()
		if n := w.events.count(""); n != 0 {
			t.Errorf("events before a node is selected: %s", w.events)
		}
		selectNode := func() {
			claim := w.claim("data").DeepCopy()
			metav1.SetMetaDataAnnotation(&claim.ObjectMeta, "volume.kubernetes.io/selected-node", "n1")
			if _, err := w.api.Update(t.Context(), claim); err != nil {
				t.Fatal(err)
			}
		}
		selectNode()
		time.Sleep(time.Second)
		synctest.Wait()
		if c := w.claim("data"); c.Annotations["volume.kubernetes.io/selected-node"] != "" || len(c.Finalizers) > 1 {
			t.Errorf("the scheduler is not asked for another node: %v, %v", c.Annotations, c.Finalizers)
		}
		if w.events.count(`data: Warning ProvisioningFailed failed to provision volume with StorageClass "waits": n1 is full`) == 0 {
			t.Errorf("events: %s", w.events)
		}
		w.storage.fail(nil)
		selectNode()
		w.settle()
		w.wantBound("data", "pvc-uid-data")
		if pv := w.pv("pvc-uid-data"); pv.Spec.NodeAffinity == nil {
			t.Error("the volume was not made for the node")
		}
	})
}

// A claim that goes while its volume is being made leaves nothing behind.
func TestAClaimGoesWhileItIsProvisionedBeside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("made", madeBeside)).beside()
		w.start()
		w.storage.inTheMidst(func(ctx context.Context, do, _ string) error {
			if do == "Provision" {
				return w.api.Delete(ctx, pvbuild.ClaimRef("data"), objects.Preconditions{})
			}
			return nil
		})
		w.create(pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("made")))
		w.settle()
		w.wantGone("PersistentVolumeClaim", "ops", "data")
		w.wantGone("PersistentVolume", "", "pvc-uid-data")
		if left := w.stored(); len(left) > 0 {
			t.Errorf("storage is left: %v", left)
		}
	})
}

// The whole life of a claim, with a crash at every call.
func TestCrashesBesideAnotherController(t *testing.T) {
	life := func(w *world) {
		go func() {
			time.Sleep(time.Second)
			_ = w.api.Delete(context.Background(), pvbuild.ClaimRef("data"), objects.Preconditions{})
		}()
	}
	sweepCrashes(t, 6, func(t *testing.T) *world {
		w := newWorld(t, storageClass("made", madeBeside), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("made"))).beside()
		w.afterStart = func() { life(w) }
		return w
	}, func(*world) {}, func(w *world) {
		w.wantGone("PersistentVolumeClaim", "ops", "data")
		w.wantGone("PersistentVolume", "", "pvc-uid-data")
		if left := w.stored(); len(left) > 0 {
			w.t.Errorf("storage is left: %v", left)
		}
	})
}

func TestProvisionersThatCannotBe(t *testing.T) {
	for name, provisioners := range map[string]map[string]string{
		"the tree's":     {"kubernetes.io/nfs": storagePlugin},
		"unknown plugin": {besideName: "example.com/nix"},
		"no name":        {"": storagePlugin},
	} {
		w := newWorld(t).withStorage()
		client := objectstest.NewClient(w.store)
		err := persistentvolume.NewController(persistentvolume.ControllerConfig{Objects: client, Plugins: w.plugins(client), Provisioners: provisioners}).Run(t.Context())
		if invalid, ok := errors.AsType[*volume.InvalidSpecError](err); !ok || !strings.Contains(invalid.Field, "provisioners") {
			t.Errorf("%s: %v", name, err)
		}
		client.Close()
	}
}
