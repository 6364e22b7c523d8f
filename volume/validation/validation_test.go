package validation_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/validation"
)

func validPod() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "web", UID: "1234"},
		Spec: v1.PodSpec{
			Containers: []v1.Container{{Name: "web", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data", SubPath: "a/b..c"}}}},
			Volumes: []v1.Volume{
				{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("1Gi"))}}},
				{Name: "share", VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "fd00::1", Path: "/"}}},
				{Name: "conf", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
					LocalObjectReference: v1.LocalObjectReference{Name: "conf"}, DefaultMode: ptr.To[int32](0o777),
					Items: []v1.KeyToPath{{Key: "a", Path: "dir/a..b", Mode: ptr.To[int32](0)}}}}},
				{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/srv", Type: ptr.To(v1.HostPathDirectory)}}},
				{Name: "all", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
					{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr.To[int64](600)}},
					{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Path: "ca.pem", Name: ptr.To("roots")}},
				}}}},
			},
		},
	}
}

// fields returns the fields that a validation refuses, sorted.
func fields(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	if volume.IsUncertain(err) {
		t.Errorf("%v does not say that nothing was done", err)
	}
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	var fields []string
	for _, e := range all {
		invalid, ok := errors.AsType[*volume.InvalidSpecError](e)
		if !ok || invalid.Reason == "" {
			t.Fatalf("%v is no InvalidSpecError with a reason", e)
		}
		fields = append(fields, invalid.Field)
	}
	slices.Sort(fields)
	return fields
}

func TestPodVolumes(t *testing.T) {
	data := func(p *v1.Pod) *v1.Volume { return &p.Spec.Volumes[0] }
	conf := func(p *v1.Pod) *v1.ConfigMapVolumeSource { return p.Spec.Volumes[2].ConfigMap }
	projected := func(p *v1.Pod) *v1.ProjectedVolumeSource { return p.Spec.Volumes[4].Projected }
	web := func(p *v1.Pod) *v1.Container { return &p.Spec.Containers[0] }
	const v0, conf0, all = "spec.volumes[0]", "spec.volumes[2].configMap", "spec.volumes[4].projected"
	tests := map[string]struct {
		change func(*v1.Pod)
		want   []string
	}{
		"valid":                 {func(*v1.Pod) {}, nil},
		"no UID":                {func(p *v1.Pod) { p.UID = "" }, []string{"metadata.uid"}},
		"UID with a slash":      {func(p *v1.Pod) { p.UID = "../../etc" }, []string{"metadata.uid"}},
		"name with a slash":     {func(p *v1.Pod) { p.Name = "a/b" }, []string{"metadata.name"}},
		"no namespace":          {func(p *v1.Pod) { p.Namespace = "" }, []string{"metadata.namespace"}},
		"volume name: slash":    {func(p *v1.Pod) { data(p).Name = "da/ta" }, []string{"spec.containers[0].volumeMounts[0].name", v0 + ".name"}},
		"volume name: upper":    {func(p *v1.Pod) { p.Spec.Volumes[1].Name = "Share" }, []string{"spec.volumes[1].name"}},
		"volume name twice":     {func(p *v1.Pod) { p.Spec.Volumes[1].Name = "data" }, []string{"spec.volumes[1].name"}},
		"two sources":           {func(p *v1.Pod) { data(p).Secret = &v1.SecretVolumeSource{SecretName: "s"} }, []string{v0}},
		"no source":             {func(p *v1.Pod) { data(p).EmptyDir = nil }, []string{v0}},
		"negative size":         {func(p *v1.Pod) { data(p).EmptyDir.SizeLimit = ptr.To(resource.MustParse("-1")) }, []string{v0 + ".emptyDir.sizeLimit"}},
		"unknown medium":        {func(p *v1.Pod) { data(p).EmptyDir.Medium = "Tape" }, []string{v0 + ".emptyDir.medium"}},
		"huge page size":        {func(p *v1.Pod) { data(p).EmptyDir.Medium = "HugePages-2Mi" }, nil},
		"bad huge page size":    {func(p *v1.Pod) { data(p).EmptyDir.Medium = "HugePages-big" }, []string{v0 + ".emptyDir.medium"}},
		"NFS without server":    {func(p *v1.Pod) { p.Spec.Volumes[1].NFS.Server = "" }, []string{"spec.volumes[1].nfs.server"}},
		"NFS, relative path":    {func(p *v1.Pod) { p.Spec.Volumes[1].NFS.Path = "export" }, []string{"spec.volumes[1].nfs.path"}},
		"hostPath type":         {func(p *v1.Pod) { p.Spec.Volumes[3].HostPath.Type = ptr.To[v1.HostPathType]("Pipe") }, []string{"spec.volumes[3].hostPath.type"}},
		"hostPath with ..":      {func(p *v1.Pod) { p.Spec.Volumes[3].HostPath.Path = "/srv/../etc" }, []string{"spec.volumes[3].hostPath.path"}},
		"mode too large":        {func(p *v1.Pod) { conf(p).DefaultMode = ptr.To[int32](0o1000) }, []string{conf0 + ".defaultMode"}},
		"negative item mode":    {func(p *v1.Pod) { conf(p).Items[0].Mode = ptr.To[int32](-1) }, []string{conf0 + ".items[0].mode"}},
		"item path with ..":     {func(p *v1.Pod) { conf(p).Items[0].Path = "a/../../b" }, []string{conf0 + ".items[0].path"}},
		"item path ..":          {func(p *v1.Pod) { conf(p).Items[0].Path = ".." }, []string{conf0 + ".items[0].path"}},
		"item path ..data":      {func(p *v1.Pod) { conf(p).Items[0].Path = "..data" }, []string{conf0 + ".items[0].path"}},
		"absolute item path":    {func(p *v1.Pod) { conf(p).Items[0].Path = "/etc/passwd" }, []string{conf0 + ".items[0].path"}},
		"empty item path":       {func(p *v1.Pod) { conf(p).Items[0].Path = "" }, []string{conf0 + ".items[0].path"}},
		"config map not named":  {func(p *v1.Pod) { conf(p).Name = "" }, []string{conf0 + ".name"}},
		"projection: nothing":   {func(p *v1.Pod) { projected(p).Sources[0] = v1.VolumeProjection{} }, []string{all + ".sources[0]"}},
		"projection: same path": {func(p *v1.Pod) { projected(p).Sources[0].ServiceAccountToken.Path = "./ca.pem" }, []string{all + ".sources[1].clusterTrustBundle.path"}},
		"token of a minute":     {func(p *v1.Pod) { projected(p).Sources[0].ServiceAccountToken.ExpirationSeconds = ptr.To[int64](60) }, []string{all + ".sources[0].serviceAccountToken.expirationSeconds"}},
		"bundle without name":   {func(p *v1.Pod) { projected(p).Sources[1].ClusterTrustBundle.Name = nil }, []string{all + ".sources[1].clusterTrustBundle"}},
		"projection: no source": {func(p *v1.Pod) { projected(p).Sources = nil }, []string{all + ".sources"}},
		"file and directory": {func(p *v1.Pod) { projected(p).Sources[0].ServiceAccountToken.Path = "ca.pem/token" },
			[]string{all + ".sources[1].clusterTrustBundle.path"}},
		"bundle with selector": {func(p *v1.Pod) { projected(p).Sources[1].ClusterTrustBundle.LabelSelector = &metav1.LabelSelector{} },
			[]string{all + ".sources[1].clusterTrustBundle.labelSelector"}},
		"claim of two lines": {func(p *v1.Pod) {
			data(p).VolumeSource = v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "a\nb"}}
		}, []string{v0 + ".persistentVolumeClaim.claimName"}},
		"config map with slash": {func(p *v1.Pod) { conf(p).Name = "a/b" }, []string{conf0 + ".name"}},
		"item path too long":    {func(p *v1.Pod) { conf(p).Items[0].Path = strings.Repeat("x", 256) }, []string{conf0 + ".items[0].path"}},
		"odd huge page size":    {func(p *v1.Pod) { data(p).EmptyDir.Medium = "HugePages-3Mi" }, []string{v0 + ".emptyDir.medium"}},
		"mount of no volume":    {func(p *v1.Pod) { web(p).VolumeMounts[0].Name = "nix" }, []string{"spec.containers[0].volumeMounts[0].name"}},
		"device of no volume":   {func(p *v1.Pod) { web(p).VolumeDevices = []v1.VolumeDevice{{Name: "nix", DevicePath: "/dev/x"}} }, []string{"spec.containers[0].volumeDevices[0].name"}},
		"subPath out of it":     {func(p *v1.Pod) { web(p).VolumeMounts[0].SubPath = "../x" }, []string{"spec.containers[0].volumeMounts[0].subPath"}},
		"mounted twice": {func(p *v1.Pod) {
			web(p).VolumeMounts = append(web(p).VolumeMounts, v1.VolumeMount{Name: "share", MountPath: "/data"})
		}, []string{"spec.containers[0].volumeMounts[1].mountPath"}},
		"in an init container": {func(p *v1.Pod) {
			p.Spec.InitContainers = []v1.Container{{Name: "init", VolumeMounts: []v1.VolumeMount{{Name: "nix", MountPath: "/x"}}}}
		}, []string{"spec.initContainers[0].volumeMounts[0].name"}},
		"two of one name": {func(p *v1.Pod) { p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: web(p).Name}) },
			[]string{"spec.containers[1].name"}},
		"an init container's name": {func(p *v1.Pod) { p.Spec.InitContainers = []v1.Container{{Name: web(p).Name}} },
			[]string{"spec.containers[0].name"}},
		"an ephemeral container's name": {func(p *v1.Pod) {
			p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: web(p).Name}}}
		}, []string{"spec.ephemeralContainers[0].name"}},
		"everything at once": {func(p *v1.Pod) { p.UID = ""; data(p).EmptyDir = nil; p.Spec.Volumes[1].NFS.Server = "" },
			[]string{"metadata.uid", v0, "spec.volumes[1].nfs.server"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := validPod()
			tc.change(pod)
			before := pod.DeepCopy()
			if got := fields(t, validation.PodVolumes(pod)); !slices.Equal(got, tc.want) {
				t.Errorf("refused %q, want %q", got, tc.want)
			}
			if before.String() != pod.String() {
				t.Error("the pod was changed")
			}
		})
	}
	if fields(t, validation.PodVolumes(nil)) == nil {
		t.Error("no pod is accepted")
	}
}

// What newer minors of Kubernetes have is judged where the one in use has it.
func TestFieldsOfNewerMinors(t *testing.T) {
	type setting struct {
		field string
		value any
		want  []string
	}
	const mode, user, options = "spec.volumes[0].emptyDir.mode", "spec.volumes[2].configMap.defaultUser", "spec.containers[0].volumeMounts[0].bindMountOptions"
	of := map[string]func(p *v1.Pod) any{
		"BindMountOptions": func(p *v1.Pod) any { return &p.Spec.Containers[0].VolumeMounts[0] },
		"Mode":             func(p *v1.Pod) any { return p.Spec.Volumes[0].EmptyDir },
		"DefaultUser":      func(p *v1.Pod) any { return p.Spec.Volumes[2].ConfigMap },
	}
	for name, tc := range map[string]setting{
		"bind mount options": {"BindMountOptions", []string{"noexec", "nosuid", "nodev"}, nil},
		"other bind options": {"BindMountOptions", []string{"exec", "nodev", "nodev"}, []string{options + "[0]", options + "[2]"}},
		"emptyDir's mode":    {"Mode", ptr.To[int32](0o1777), nil},
		"setuid emptyDir":    {"Mode", ptr.To[int32](0o4777), []string{mode}},
		"negative mode":      {"Mode", ptr.To[int32](-1), []string{mode}},
		"negative user":      {"DefaultUser", ptr.To[int64](-1), []string{user}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := validPod()
			if !kubeapi.Set(of[tc.field](pod), tc.field, tc.value) {
				t.Skipf("this minor of k8s.io/api has no %s", tc.field)
			}
			if got := fields(t, validation.PodVolumes(pod)); !slices.Equal(got, tc.want) {
				t.Errorf("refused %q, want %q", got, tc.want)
			}
		})
	}
}

// What a plugin refuses of its own source is named without the pod around it.
func TestFieldsOfOneSource(t *testing.T) {
	files := &v1.Volume{VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{
		DefaultMode: ptr.To[int32](-1), Items: []v1.KeyToPath{{Key: "k", Path: "/p"}}}}}
	want := []string{"secret.defaultMode", "secret.items[0].path", "secret.secretName"}
	if got := fields(t, validation.Files(files)); !slices.Equal(got, want) {
		t.Errorf("refused %q, want %q", got, want)
	}
	dir := &v1.EmptyDirVolumeSource{Medium: "Tape", SizeLimit: ptr.To(resource.MustParse("-1"))}
	if got, want := fields(t, validation.EmptyDir(dir)), []string{"emptyDir.medium", "emptyDir.sizeLimit"}; !slices.Equal(got, want) {
		t.Errorf("refused %q, want %q", got, want)
	}
	if err := errors.Join(validation.Files(&v1.Volume{}), validation.EmptyDir(&v1.EmptyDirVolumeSource{})); err != nil {
		t.Error(err)
	}
}

func TestTwoSourcesAreNamed(t *testing.T) {
	pod := validPod()
	pod.Spec.Volumes[0].GitRepo = &v1.GitRepoVolumeSource{}
	err := validation.PodVolumes(pod)
	if err == nil || !strings.Contains(err.Error(), "emptyDir") || !strings.Contains(err.Error(), "gitRepo") {
		t.Errorf("%v does not name both sources", err)
	}
}

func validPV() *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "nfs211"},
		Spec: v1.PersistentVolumeSpec{
			Capacity:               v1.ResourceList{v1.ResourceStorage: resource.MustParse("10Gi")},
			AccessModes:            []v1.PersistentVolumeAccessMode{v1.ReadWriteMany},
			PersistentVolumeSource: v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "10.20.172.211", Path: "/nfs"}},
			ClaimRef:               &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "ops-test", Name: "nfs-211"},
		},
	}
}

func TestPersistentVolume(t *testing.T) {
	tests := map[string]struct {
		change func(*v1.PersistentVolume)
		want   []string
	}{
		"valid":             {func(*v1.PersistentVolume) {}, nil},
		"no capacity":       {func(p *v1.PersistentVolume) { p.Spec.Capacity = nil }, []string{"spec.capacity.storage"}},
		"negative capacity": {func(p *v1.PersistentVolume) { p.Spec.Capacity[v1.ResourceStorage] = resource.MustParse("-1Gi") }, []string{"spec.capacity.storage"}},
		"no source":         {func(p *v1.PersistentVolume) { p.Spec.NFS = nil }, []string{"spec"}},
		"two sources": {func(p *v1.PersistentVolume) { p.Spec.HostPath = &v1.HostPathVolumeSource{Path: "/srv"} },
			[]string{"spec"}},
		"no mode":       {func(p *v1.PersistentVolume) { p.Spec.AccessModes = nil }, []string{"spec.accessModes"}},
		"unknown mode":  {func(p *v1.PersistentVolume) { p.Spec.AccessModes[0] = "RWX" }, []string{"spec.accessModes[0]"}},
		"claimRef kind": {func(p *v1.PersistentVolume) { p.Spec.ClaimRef.Kind = "Pod" }, []string{"spec.claimRef.kind"}},
		"claimRef half": {func(p *v1.PersistentVolume) { p.Spec.ClaimRef.Namespace = "" }, []string{"spec.claimRef.namespace"}},
		"claimRef path": {func(p *v1.PersistentVolume) { p.Spec.ClaimRef.Name = "../x" }, []string{"spec.claimRef.name"}},
		"unknown policy": {func(p *v1.PersistentVolume) { p.Spec.PersistentVolumeReclaimPolicy = "Shred" },
			[]string{"spec.persistentVolumeReclaimPolicy"}},
		"local without affinity": {func(p *v1.PersistentVolume) {
			p.Spec.NFS, p.Spec.Local = nil, &v1.LocalVolumeSource{Path: "/mnt/disks/a"}
		}, []string{"spec.nodeAffinity.required"}},
		"affinity operator": {func(p *v1.PersistentVolume) {
			p.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{{Key: "a", Operator: "Like"}}}}}}
		}, []string{"spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0]"}},
		"namespace": {func(p *v1.PersistentVolume) { p.Namespace = "ops" }, []string{"metadata.namespace"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pv := validPV()
			tc.change(pv)
			if got := fields(t, validation.PersistentVolume(pv)); !slices.Equal(got, tc.want) {
				t.Errorf("refused %q, want %q", got, tc.want)
			}
		})
	}
}

func TestPersistentVolumeClaim(t *testing.T) {
	tests := map[string]struct {
		change func(*v1.PersistentVolumeClaim)
		want   []string
	}{
		"valid":       {func(*v1.PersistentVolumeClaim) {}, nil},
		"empty class": {func(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName = ptr.To("") }, nil},
		"negative request": {func(c *v1.PersistentVolumeClaim) {
			c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse("-1")
		}, []string{"spec.resources.requests.storage"}},
		"no request":   {func(c *v1.PersistentVolumeClaim) { c.Spec.Resources.Requests = nil }, []string{"spec.resources.requests.storage"}},
		"unknown mode": {func(c *v1.PersistentVolumeClaim) { c.Spec.AccessModes[0] = "Any" }, []string{"spec.accessModes[0]"}},
		"RWOP and another": {func(c *v1.PersistentVolumeClaim) {
			c.Spec.AccessModes = append(c.Spec.AccessModes, v1.ReadWriteOncePod)
		}, []string{"spec.accessModes"}},
		"volume mode": {func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr.To[v1.PersistentVolumeMode]("Tape") }, []string{"spec.volumeMode"}},
		"volume name": {func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "../pv" }, []string{"spec.volumeName"}},
		"selector": {func(c *v1.PersistentVolumeClaim) {
			c.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}
		}, []string{"spec.selector.matchExpressions[0].operator"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pvc := &v1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "nfs-211"},
				Spec: v1.PersistentVolumeClaimSpec{
					AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany},
					Resources:   v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("10Gi")}},
				},
			}
			tc.change(pvc)
			if got := fields(t, validation.PersistentVolumeClaim(pvc)); !slices.Equal(got, tc.want) {
				t.Errorf("refused %q, want %q", got, tc.want)
			}
		})
	}
}
