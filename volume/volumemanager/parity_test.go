package volumemanager_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containerenv"
	"github.com/podvol/podvol/volume/csitranslation"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/plugins/iscsi"
	"github.com/podvol/podvol/volume/validation"
	"github.com/podvol/podvol/volume/volumemanager"
)

// fate is what becomes of the fields of one type of the API, by their names in
// manifests.
type fate struct {
	of reflect.Type
	// done: read, and followed.
	done string
	// refused: with a typed error; TestWhatIsRefused tries it.
	refused string
	// translated: refused in the same way without a [volume.Translator].
	translated string
	// noted: neither, as the package comment says by that very name.
	noted string
	// others: of no concern to volumes on a node.
	others string
}

func fates() []fate {
	return []fate{
		{of: reflect.TypeFor[v1.PodSpec](),
			done:  "volumes initContainers containers ephemeralContainers serviceAccountName securityContext resources nodeName",
			noted: "hostUsers automountServiceAccountToken",
			others: "restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds dnsPolicy nodeSelector serviceAccount " +
				"hostNetwork hostPID hostIPC shareProcessNamespace imagePullSecrets hostname subdomain affinity schedulerName tolerations hostAliases " +
				"priorityClassName priority dnsConfig readinessGates runtimeClassName enableServiceLinks preemptionPolicy overhead topologySpreadConstraints " +
				"setHostnameAsFQDN os schedulingGates resourceClaims hostnameOverride schedulingGroup evictionResponders"},
		{of: reflect.TypeFor[v1.PodSecurityContext](),
			done: "seLinuxOptions runAsUser fsGroup fsGroupChangePolicy seLinuxChangePolicy", noted: "supplementalGroups",
			others: "windowsOptions runAsGroup runAsNonRoot supplementalGroupsPolicy sysctls seccompProfile appArmorProfile"},
		{of: reflect.TypeFor[v1.SecurityContext](),
			done:   "privileged seLinuxOptions runAsUser",
			others: "capabilities windowsOptions runAsGroup runAsNonRoot readOnlyRootFilesystem allowPrivilegeEscalation procMount seccompProfile appArmorProfile"},
		{of: reflect.TypeFor[v1.Container](),
			done: "name envFrom env resources restartPolicy volumeMounts volumeDevices securityContext",
			others: "image command args workingDir ports resizePolicy restartPolicyRules livenessProbe readinessProbe startupProbe lifecycle " +
				"terminationMessagePath terminationMessagePolicy imagePullPolicy stdin stdinOnce tty"},
		{of: reflect.TypeFor[v1.VolumeMount](), done: "name readOnly recursiveReadOnly mountPath subPath mountPropagation subPathExpr bindMountOptions"},
		{of: reflect.TypeFor[v1.VolumeDevice](), done: "name devicePath"},
		{of: reflect.TypeFor[v1.EnvVarSource](), done: "fieldRef resourceFieldRef configMapKeyRef secretKeyRef fileKeyRef"},

		{of: reflect.TypeFor[v1.VolumeSource](),
			done:       "hostPath emptyDir secret nfs iscsi flexVolume cephfs rbd persistentVolumeClaim downwardAPI configMap projected ephemeral",
			refused:    "gitRepo flocker fc quobyte photonPersistentDisk scaleIO storageos csi image glusterfs",
			translated: "gcePersistentDisk awsElasticBlockStore cinder azureFile vsphereVolume azureDisk portworxVolume"},
		{of: reflect.TypeFor[v1.ImageVolumeSource](), done: "reference pullPolicy"}, // of volume/plugins/image
		{of: reflect.TypeFor[v1.EmptyDirVolumeSource](), done: "medium mode", noted: "sizeLimit"},
		{of: reflect.TypeFor[v1.HostPathVolumeSource](), done: "path type"},
		{of: reflect.TypeFor[v1.NFSVolumeSource](), done: "server path readOnly"},
		{of: reflect.TypeFor[v1.CephFSVolumeSource](), done: "monitors path user secretFile secretRef readOnly"},
		{of: reflect.TypeFor[v1.CephFSPersistentVolumeSource](), done: "monitors path user secretFile secretRef readOnly"},
		{of: reflect.TypeFor[v1.RBDVolumeSource](), done: "monitors image fsType pool user keyring secretRef readOnly"},
		{of: reflect.TypeFor[v1.RBDPersistentVolumeSource](), done: "monitors image fsType pool user keyring secretRef readOnly"},
		{of: reflect.TypeFor[v1.GlusterfsVolumeSource](), done: "endpoints path readOnly"}, // with TrustPodNamespaces
		{of: reflect.TypeFor[v1.GlusterfsPersistentVolumeSource](), done: "endpoints path readOnly endpointsNamespace"},
		{of: reflect.TypeFor[v1.ISCSIVolumeSource](),
			done: "targetPortal portals iqn lun iscsiInterface fsType readOnly chapAuthSession secretRef initiatorName", noted: "chapAuthDiscovery"},
		{of: reflect.TypeFor[v1.ISCSIPersistentVolumeSource](),
			done: "targetPortal portals iqn lun iscsiInterface fsType readOnly chapAuthSession secretRef initiatorName", noted: "chapAuthDiscovery"},
		{of: reflect.TypeFor[v1.FlexVolumeSource](), done: "driver fsType secretRef readOnly options"},
		{of: reflect.TypeFor[v1.FlexPersistentVolumeSource](), done: "driver fsType secretRef readOnly options"},
		{of: reflect.TypeFor[v1.SecretVolumeSource](), done: "secretName items defaultMode optional defaultUser"},
		{of: reflect.TypeFor[v1.ConfigMapVolumeSource](), done: "name items defaultMode optional defaultUser"},
		{of: reflect.TypeFor[v1.KeyToPath](), done: "key path mode user"},
		{of: reflect.TypeFor[v1.DownwardAPIVolumeSource](), done: "items defaultMode defaultUser"},
		{of: reflect.TypeFor[v1.DownwardAPIVolumeFile](), done: "path fieldRef resourceFieldRef mode user"},
		{of: reflect.TypeFor[v1.ObjectFieldSelector](), done: "apiVersion fieldPath"},
		{of: reflect.TypeFor[v1.ResourceFieldSelector](), done: "containerName resource divisor"},
		{of: reflect.TypeFor[v1.PersistentVolumeClaimVolumeSource](), done: "claimName readOnly"},
		{of: reflect.TypeFor[v1.EphemeralVolumeSource](), done: "volumeClaimTemplate"},
		{of: reflect.TypeFor[v1.PersistentVolumeClaimTemplate](), done: "metadata spec"},

		{of: reflect.TypeFor[v1.ProjectedVolumeSource](), done: "sources defaultMode defaultUser"},
		{of: reflect.TypeFor[v1.VolumeProjection](), done: "secret downwardAPI configMap serviceAccountToken clusterTrustBundle podCertificate"},
		{of: reflect.TypeFor[v1.SecretProjection](), done: "name items optional"},
		{of: reflect.TypeFor[v1.ConfigMapProjection](), done: "name items optional"},
		{of: reflect.TypeFor[v1.DownwardAPIProjection](), done: "items"},
		{of: reflect.TypeFor[v1.ServiceAccountTokenProjection](), done: "audience expirationSeconds path user"},
		{of: reflect.TypeFor[v1.ClusterTrustBundleProjection](), done: "name signerName labelSelector optional path user"},
		{of: reflect.TypeFor[v1.PodCertificateProjection](), done: "signerName keyType maxExpirationSeconds credentialBundlePath keyPath certificateChainPath userAnnotations user"},

		{of: reflect.TypeFor[v1.PersistentVolumeSpec](),
			done: "capacity accessModes claimRef persistentVolumeReclaimPolicy storageClassName mountOptions volumeMode nodeAffinity volumeAttributesClassName " +
				"hostPath nfs iscsi flexVolume glusterfs local cephfs rbd",
			refused:    "fc flocker quobyte photonPersistentDisk scaleIO storageos csi",
			translated: "gcePersistentDisk awsElasticBlockStore cinder azureFile vsphereVolume azureDisk portworxVolume"},
		{of: reflect.TypeFor[v1.LocalVolumeSource](), done: "path fsType"},
		{of: reflect.TypeFor[v1.PersistentVolumeClaimSpec](),
			done: "accessModes selector resources volumeName storageClassName volumeMode volumeAttributesClassName", noted: "dataSource dataSourceRef"},
		{of: reflect.TypeFor[v1.PersistentVolumeClaimStatus](),
			done:  "phase accessModes capacity conditions allocatedResources allocatedResourceStatuses currentVolumeAttributesClassName modifyVolumeStatus",
			noted: "healthStatus"},
		{of: reflect.TypeFor[storagev1.StorageClass](),
			done: "metadata provisioner parameters reclaimPolicy mountOptions allowVolumeExpansion volumeBindingMode allowedTopologies"},
	}
}

// Whoever takes a new version of the API has to decide what becomes of its new
// fields: none is ignored because nobody thought of it.
func TestEveryFieldHasAFate(t *testing.T) {
	if kubeapi.TrustBundleVersion() != certificatesv1.SchemeGroupVersion {
		t.Skip("the fields are those of k8s.io/api 0.37")
	}
	notes := limitsPage(t)
	for _, f := range fates() {
		known := strings.Fields(strings.Join([]string{f.done, f.refused, f.translated, f.noted, f.others}, " "))
		fields := manifestFields(f.of)
		for _, name := range fields {
			if n := count(known, name); n != 1 {
				t.Errorf("%s.%s is listed %d times: say once what becomes of it, and refuse it or tell of it (podcheck.Shortfall) if nothing does", f.of.Name(), name, n)
			}
		}
		for _, name := range known {
			if !slices.Contains(fields, name) {
				t.Errorf("%s has no field %s", f.of.Name(), name)
			}
		}
		for name := range strings.FieldsSeq(f.noted) {
			if !strings.Contains(notes, name) {
				t.Errorf("the package comment does not say what becomes of %s.%s", f.of.Name(), name)
			}
		}
	}
}

// manifestFields are the names of a type's fields as manifests have them, those of
// what it embeds included.
func manifestFields(of reflect.Type) (names []string) {
	for i := range of.NumField() {
		field := of.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name != "":
			names = append(names, name)
		case field.Type != reflect.TypeFor[metav1.TypeMeta]():
			names = append(names, manifestFields(field.Type)...)
		}
	}
	return names
}

func count(all []string, name string) (n int) {
	for _, a := range all {
		if a == name {
			n++
		}
	}
	return n
}

// limitsPage is the page of what is not done.
func limitsPage(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("LIMITS.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What is listed as translated is, inline and as a PersistentVolume.
func TestWhatIsTranslated(t *testing.T) {
	translator, inline := csitranslation.New(), reflect.TypeFor[v1.VolumeSource]()
	for _, f := range fates() {
		for name := range strings.FieldsSeq(f.translated) {
			spec := &volume.Spec{Volume: &v1.Volume{Name: "v"}}
			source := reflect.ValueOf(&spec.Volume.VolumeSource).Elem()
			if f.of != inline {
				spec = volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{}, false)
				source = reflect.ValueOf(&spec.PersistentVolume.Spec.PersistentVolumeSource).Elem()
			}
			if setPointer(source, name); name == "azureDisk" {
				source.FieldByName("AzureDisk").Interface().(*v1.AzureDiskVolumeSource).DataDiskURI = "/subscriptions/s"
			}
			for _, field := range []string{"PDName", "VolumeID", "VolumePath", "ShareName", "SecretName", "SecretNamespace"} {
				setText(source.FieldByNameFunc(func(n string) bool { return strings.EqualFold(n, name) }).Elem(), field, "x")
			}
			if got, err := translator.Translate(spec, "shop"); err != nil || !got.Migrated {
				t.Errorf("%s.%s: %+v, %v", f.of.Name(), name, got, err)
			}
		}
	}
}

// setText sets a field, if there is one of that name.
func setText(of reflect.Value, field, text string) {
	switch f := of.FieldByName(field); {
	case !f.IsValid():
	case f.Kind() == reflect.Pointer:
		f.Set(reflect.ValueOf(&text))
	default:
		f.SetString(text)
	}
}

// What is listed as refused is, and what is listed as done is not.
func TestWhatIsRefused(t *testing.T) {
	w := newWorld(t)
	// No program of this machine logs in to the targets of the rules.
	noTools := iscsi.Config{ToolDirs: []string{t.TempDir()}, LockDir: t.TempDir() + "/locks"}
	w.plugins = func() []volume.VolumePlugin { return plugins.All(iscsi.New(noTools)) }
	manager, _ := w.start()
	for _, f := range fates() {
		try := w.refusalOf(manager, f.of)
		if try == nil {
			if f.refused+f.translated != "" {
				t.Errorf("nobody tries what is refused of %s", f.of.Name())
			}
			continue
		}
		for name := range strings.FieldsSeq(f.refused + " " + f.translated) {
			if !try(name) {
				t.Errorf("%s.%s is not refused", f.of.Name(), name)
			}
		}
		for name := range strings.FieldsSeq(f.done) {
			if try(name) {
				t.Errorf("%s.%s is refused", f.of.Name(), name)
			}
		}
	}
}

// refusalOf returns what tells whether a field of a type is refused; nil for types
// that are not asked about.
func (w *world) refusalOf(manager *volumemanager.Manager, of reflect.Type) (refuses func(field string) bool) {
	switch of {
	case reflect.TypeFor[v1.VolumeSource]():
		return func(name string) bool {
			return w.isUnsupported(manager, readRules(w.t).validVolume(w.t, func(valid tree) bool { return valid[name] != nil }))
		}
	case reflect.TypeFor[v1.PersistentVolumeSpec]():
		return func(name string) bool {
			claim, pv := boundPair("claim-"+strings.ToLower(name), "pv-"+strings.ToLower(name))
			source := reflect.ValueOf(&pv.Spec.PersistentVolumeSource).Elem()
			source.SetZero()
			if !setPointer(source, name) {
				return false // it is no source
			}
			w.add(claim, pv)
			return w.isUnsupported(manager, claimVolume("v", claim.Name, false))
		}
	case reflect.TypeFor[v1.VolumeProjection]():
		return func(name string) bool {
			v := readRules(w.t).validVolume(w.t, func(valid tree) bool { return valid["projected"] != nil && strings.Contains(fmt.Sprint(valid), name) })
			v.Projected.Sources = slices.DeleteFunc(v.Projected.Sources, func(p v1.VolumeProjection) bool {
				return !slices.Contains(validation.ProjectionTypes(&p), name)
			})
			return w.isUnsupported(manager, v)
		}
	case reflect.TypeFor[v1.EnvVarSource]():
		return func(name string) bool {
			from := &v1.EnvVarSource{}
			setPointer(reflect.ValueOf(from).Elem(), name)
			c := &v1.Container{Name: "c", Env: []v1.EnvVar{{Name: "V", ValueFrom: from}}}
			_, err := containerenv.Resolve(w.t.Context(), newPod("web"), c, containerenv.Sources{Objects: objects.NewStore(), RootDir: w.root})
			return errors.Is(err, containerenv.ErrEnvFile)
		}
	}
	return nil
}

// setPointer sets the field of this name in manifests to something empty, and
// reports whether there is one.
func setPointer(of reflect.Value, name string) bool {
	for i := range of.NumField() {
		if field, _, _ := strings.Cut(of.Type().Field(i).Tag.Get("json"), ","); field == name {
			of.Field(i).Set(reflect.New(of.Field(i).Type().Elem()))
			return true
		}
	}
	return false
}

// isUnsupported has the volume set up for a pod of its own, which need not be
// valid otherwise: what it has is refused in any case, so that it fails.
func (w *world) isUnsupported(manager *volumemanager.Manager, v v1.Volume) bool {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	pod := newPod("web", v)
	defer func() { mustTearDown(w.t, manager, pod) }()
	stop := manager.Subscribe(func(s volumemanager.VolumeStatus) {
		if s.Err != nil {
			cancel()
		}
	})
	defer stop()
	_, err := manager.SetUpPod(ctx, pod)
	_, unsupported := errors.AsType[*volume.UnsupportedError](err)
	return unsupported
}

// asHostPath translates disks into directories.
type asHostPath struct{ dir string }

func (a asHostPath) Translate(spec *volume.Spec, _ string) (*volume.Spec, error) {
	if pdName(spec) == "" {
		return spec, nil
	}
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: v1.PersistentVolumeSpec{
		PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: a.dir}}}}
	return &volume.Spec{PersistentVolume: pv, Migrated: true, InlineVolumeSpecForCSIMigration: true}, nil
}

func (asHostPath) Plugin(spec *volume.Spec) string {
	if pdName(spec) == "" {
		return ""
	}
	return "kubernetes.io/gce-pd"
}

// The status of a volume says whether it was translated, to its end.
func TestTranslatedVolumesAreTold(t *testing.T) {
	w := newWorld(t)
	config := w.config()
	config.Translator = asHostPath{t.TempDir()}
	manager, err := volumemanager.New(config)
	if err != nil {
		t.Fatal(err)
	}
	stop := w.run(manager)
	defer stop()
	var mu sync.Mutex
	told := make(map[string]bool)
	defer manager.Subscribe(func(v volumemanager.VolumeStatus) {
		mu.Lock()
		defer mu.Unlock()
		if v.Ended != "" {
			told[v.Volume+" "+v.Ended] = v.Migrated
		}
	})()
	pod := withVolumes(diskPod("web", "a"), v1.Volume{Name: "own", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: t.TempDir()}}})
	mustSetUp(t, manager, pod)
	mustTearDown(t, manager, pod)
	mu.Lock()
	defer mu.Unlock()
	if diff := cmpDiff(map[string]bool{"v-a set-up": true, "v-a tear-down": true, "own set-up": false, "own tear-down": false}, told); diff != "" {
		t.Error(diff)
	}
}
