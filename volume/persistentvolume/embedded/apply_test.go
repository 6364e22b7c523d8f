package embedded_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
)

func TestApplyKeepsWhatOthersHaveWritten(t *testing.T) {
	m := newMachine(t)
	m.run()
	m.mustBind(static + claimOfStatic + web)
	claim, pv := m.claim("data"), m.pv("static")

	// The same again changes nothing.
	m.mustApply(static + claimOfStatic)
	if again := m.claim("data"); again.ResourceVersion != claim.ResourceVersion {
		t.Errorf("the claim was written again: %v", again)
	}
	if again := m.pv("static"); again.ResourceVersion != pv.ResourceVersion {
		t.Errorf("the volume was written again: %v", again)
	}

	// What is declared no more goes, and nothing else.
	next := strings.NewReplacer(`, labels: {mine: "1"}`, `, annotations: {note: new}`, `, mountOptions: [hard]`, ``).Replace(static)
	m.mustApply(next + claimOfStatic)
	got := m.pv("static")
	if len(got.Labels) > 0 || len(got.Spec.MountOptions) > 0 || got.Annotations["note"] != "new" {
		t.Errorf("it has %v, %v, %v", got.Labels, got.Spec.MountOptions, got.Annotations)
	}
	if got.Spec.ClaimRef == nil || got.Spec.ClaimRef.UID != claim.UID || got.Annotations["pv.kubernetes.io/bound-by-controller"] != "yes" ||
		!slices.Equal(got.Finalizers, pv.Finalizers) || got.Status.Phase != v1.VolumeBound || got.UID != pv.UID {
		t.Errorf("it is %v", got)
	}
	if err := m.Bind(t.Context(), load(t, web).Pods()...); err != nil {
		t.Error(err)
	}
}

func TestWhatOnlyAClusterWritesIsTakenFromNoManifest(t *testing.T) {
	m := newMachine(t)
	m.mustApply(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: data
  uid: from-elsewhere
  resourceVersion: "7"
  finalizers: [example.com/never-removed]
  ownerReferences: [{apiVersion: v1, kind: Pod, name: web, uid: gone, controller: true}]
  annotations: {pv.kubernetes.io/bind-completed: "yes", volume.kubernetes.io/selected-node: other, note: mine}
spec: {storageClassName: "", volumeName: pv, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
status: {phase: Bound}
`)
	claim := m.claim("data")
	_, completed := claim.Annotations["pv.kubernetes.io/bind-completed"]
	_, selected := claim.Annotations["volume.kubernetes.io/selected-node"]
	if claim.UID == "from-elsewhere" || claim.UID == "" || len(claim.Finalizers)+len(claim.OwnerReferences) > 0 || completed || selected ||
		claim.Annotations["note"] != "mine" || claim.Status.Phase != "" || claim.Spec.VolumeName != "pv" {
		t.Errorf("it is %v", claim)
	}
}

// A claim that was deleted and is declared again must not get the first one's
// data.
func TestAClaimThatComesAgainIsAnother(t *testing.T) {
	m := newMachine(t)
	m.run()
	m.PodsComplete()
	m.mustBind(static + claimOfStatic + web)
	first := m.claim("data").UID
	if err := m.PodGone(t.Context(), load(t, web).Pods()[0].UID); err != nil {
		t.Fatal(err)
	}
	m.delete("PersistentVolumeClaim", "data")
	m.eventually("the claim is gone", func() bool { return !m.exists("PersistentVolumeClaim", "data") })
	err := m.bind(static + claimOfStatic + web)
	if m.claim("data").UID == first || !errors.Is(err, claimbinding.ErrUnbound) {
		t.Errorf("err = %v", err)
	}
	if pv := m.pv("static"); pv.Status.Phase != v1.VolumeReleased || pv.Spec.ClaimRef.UID != first {
		t.Errorf("the volume is %v", pv)
	}
}

func TestApplyRefusesWhatWouldLoseData(t *testing.T) {
	for name, tc := range map[string]struct {
		old, new string // in the manifests
		unbound  bool   // there is no pod yet, and the class waits for one
		field    string // empty: it is taken
	}{
		"source":                   {"path: /a", "path: /b", false, "spec.nfs"},
		"source of another type":   {"nfs: {server: s, path: /a}", "hostPath: {path: /a}", false, "spec.nfs"},
		"volume mode":              {"mountOptions: [hard]", "volumeMode: Block", false, "spec.volumeMode"},
		"another's":                {"mountOptions: [hard]", "claimRef: {namespace: default, name: other}", false, "spec.claimRef"},
		"the claim's own":          {"mountOptions: [hard]", "claimRef: {namespace: default, name: data}", false, ""},
		"reclaim policy":           {"mountOptions: [hard]", "persistentVolumeReclaimPolicy: Retain", false, ""},
		"class of the claim":       {`storageClassName: ""`, "storageClassName: other", false, "spec.storageClassName"},
		"access modes":             {`storageClassName: "", accessModes: [ReadWriteOnce]`, `storageClassName: "", accessModes: [ReadOnlyMany]`, false, "spec.accessModes"},
		"less":                     {"requests: {storage: 1Gi}", "requests: {storage: 1Mi}", false, "spec.resources.requests.storage"},
		"more":                     {"requests: {storage: 1Gi}", "requests: {storage: 2Gi}", false, ""},
		"another volume":           {`storageClassName: "", acc`, `storageClassName: "", volumeName: other, acc`, false, "spec.volumeName"},
		"its volume":               {`storageClassName: "", acc`, `storageClassName: "", volumeName: static, acc`, false, ""},
		"the default said":         {`storageClassName: "", acc`, `storageClassName: "", volumeMode: Filesystem, acc`, false, ""},
		"another UID":              {"metadata: {name: data}", "metadata: {name: data, uid: other}", false, "metadata.uid"},
		"source of a free volume":  {"path: /a", "path: /b", true, ""},
		"class of a pending claim": {`storageClassName: ""`, "storageClassName: other", true, ""},
		"less of a pending claim":  {"requests: {storage: 1Gi}", "requests: {storage: 1Mi}", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			before := static + claimOfStatic
			if tc.unbound {
				m.mustApply(before) // nobody runs
			} else {
				m.run()
				m.mustBind(before + web)
			}
			after := strings.Replace(before, tc.old, tc.new, 1)
			if after == before {
				t.Fatal("the manifests are the same")
			}
			const other = "\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: also}\n"
			claim, pv := m.claim("data"), m.pv("static")
			err := m.Apply(t.Context(), objectsOf(t, after+other)...)
			refused, _ := errors.AsType[*volume.Failure](err)
			ok := errors.Is(err, embedded.ErrImmutable)
			if ok != (tc.field != "") || ok && !strings.HasSuffix(refused.Subject, " "+tc.field) || !ok && err != nil {
				t.Fatalf("err = %v", err)
			}
			if !m.exists("ConfigMap", "also") {
				t.Error("the others were not applied")
			}
			changed := m.claim("data").ResourceVersion != claim.ResourceVersion || m.pv("static").ResourceVersion != pv.ResourceVersion
			if changed == ok {
				t.Errorf("changed: %t, refused: %t", changed, ok)
			}
			if ok && (!strings.Contains(err.Error(), strings.TrimSuffix(refused.Subject, " "+tc.field)) || !strings.Contains(err.Error(), "put the manifest back") && tc.field != "metadata.uid") {
				t.Errorf("err = %v", err)
			}
		})
	}
}

func TestWhatIsBeingDeletedIsMadeAnewOnceItIsGone(t *testing.T) {
	m := newMachine(t)
	m.run()
	m.PodsComplete()
	m.mustBind(static + claimOfStatic + web)
	first := m.claim("data").UID
	m.delete("PersistentVolumeClaim", "data") // which the pod keeps
	if err := m.Apply(t.Context(), objectsOf(t, claimOfStatic)...); !errors.Is(err, embedded.ErrBeingDeleted) {
		t.Fatalf("err = %v", err)
	}
	if err := m.PodGone(t.Context(), load(t, web).Pods()[0].UID); err != nil {
		t.Fatal(err)
	}
	m.eventually("the claim is another", func() bool {
		claim, err := objects.Get[*v1.PersistentVolumeClaim](t.Context(), m.Objects(), volume.NewObjectRef("PersistentVolumeClaim", "default", "data"))
		return err == nil && claim.UID != first && claim.DeletionTimestamp == nil
	})
}

// Its manifest has gone meanwhile, though nothing is to be deleted for that.
func TestWhatIsBeingDeletedIsNotMadeAnewOnceItIsDeclaredNoMore(t *testing.T) {
	m := newMachine(t)
	m.run()
	m.PodsComplete()
	m.mustBind(static + claimOfStatic + web)
	m.delete("PersistentVolumeClaim", "data") // which the pod keeps
	if err := m.Apply(t.Context(), objectsOf(t, claimOfStatic)...); !errors.Is(err, embedded.ErrBeingDeleted) {
		t.Fatalf("err = %v", err)
	}
	if err := m.Prune(t.Context(), embedded.Declared{NothingIsMeant: true, Gone: map[volume.ObjectRef]bool{}}); err != nil {
		t.Fatal(err)
	}
	if err := m.PodGone(t.Context(), load(t, web).Pods()[0].UID); err != nil {
		t.Fatal(err)
	}
	m.eventually("the claim is gone", func() bool { return !m.exists("PersistentVolumeClaim", "data") })
	if _, err := m.Objects().Create(t.Context(), &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other"}}); err != nil {
		t.Fatal(err) // which has whoever makes anew look again
	}
	if err := m.Idle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m.exists("PersistentVolumeClaim", "data") {
		t.Error("a claim is made that no manifest declares")
	}
}

func TestApplyRefusesWhatIsInvalid(t *testing.T) {
	m := newMachine(t)
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}}
	err := m.Apply(t.Context(), claim)
	refused, ok := errors.AsType[*embedded.ObjectError](err)
	if _, invalid := errors.AsType[*volume.InvalidSpecError](err); !invalid || !ok || refused.Ref.Name != "data" || m.exists("PersistentVolumeClaim", "data") {
		t.Errorf("err = %v", err)
	}
}

// What nobody declares is as the API would have it, also once it is declared no
// more, and that is no change.
func TestFieldsHaveTheirDefaults(t *testing.T) {
	m := newMachine(t)
	check := func(policy v1.PersistentVolumeReclaimPolicy) {
		t.Helper()
		pv, claim := m.pv("static"), m.claim("data")
		for _, mode := range []*v1.PersistentVolumeMode{pv.Spec.VolumeMode, claim.Spec.VolumeMode} {
			if mode == nil || *mode != v1.PersistentVolumeFilesystem {
				t.Errorf("a volume mode is %v", mode)
			}
		}
		if pv.Spec.PersistentVolumeReclaimPolicy != policy {
			t.Errorf("the reclaim policy is %q, want %q", pv.Spec.PersistentVolumeReclaimPolicy, policy)
		}
	}
	m.mustApply(static + claimOfStatic)
	check(v1.PersistentVolumeReclaimRetain)
	before := m.pv("static").ResourceVersion
	m.mustApply(static + claimOfStatic)
	if after := m.pv("static").ResourceVersion; after != before {
		t.Errorf("it was written again: %s, then %s", before, after)
	}
	explicit := strings.ReplaceAll(static, "spec: {", "spec: {persistentVolumeReclaimPolicy: Recycle, volumeMode: Filesystem, ")
	m.mustApply(explicit)
	check(v1.PersistentVolumeReclaimRecycle)
	m.mustApply(static)
	check(v1.PersistentVolumeReclaimRetain)
}

// New claims that say nothing of their class get the default one, those that name
// a volume included, and it is not taken for declared.
func TestNewClaimsGetTheDefaultClass(t *testing.T) {
	const class = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: std, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: kubernetes.io/no-provisioner
`
	claim := func(name, more string) string {
		return "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: " + name + "}\n" +
			"spec: {" + more + "accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n"
	}
	want := func(m *machine, name, want string) {
		t.Helper()
		if got := m.claim(name).Spec.StorageClassName; (got == nil) != (want == "nil") || got != nil && *got != want {
			t.Errorf("the class of %s is %v, want %q", name, got, want)
		}
	}
	m := newMachine(t)
	m.mustApply(claim("before", ""))
	all := claim("before", "") + claim("free", "") + claim("named", "volumeName: pv, ") + claim("classless", `storageClassName: "", `) + "---" + class
	for range 2 { // the second changes nothing
		m.mustApply(all)
		want(m, "before", "nil") // for the controller
		want(m, "free", "std")
		want(m, "named", "std")
		want(m, "classless", "")
	}
}
