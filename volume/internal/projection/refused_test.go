package projection_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/configmap"
)

func TestInvalidSpecsAreRefused(t *testing.T) {
	item := func(item v1.KeyToPath) v1.VolumeSource {
		s := fromConfigMap("app")
		s.ConfigMap.Items = []v1.KeyToPath{item}
		return s
	}
	mode := func(m int32) v1.VolumeSource {
		s := fromSecret("tls")
		s.Secret.DefaultMode = &m
		return s
	}
	downward := func(f v1.DownwardAPIVolumeFile) v1.VolumeSource {
		f.Path = "f"
		return v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{f}}}
	}
	field := func(path string) v1.VolumeSource {
		return downward(v1.DownwardAPIVolumeFile{FieldRef: &v1.ObjectFieldSelector{FieldPath: path}})
	}
	res := func(container, name, divisor string) v1.VolumeSource {
		return downward(v1.DownwardAPIVolumeFile{ResourceFieldRef: &v1.ResourceFieldSelector{
			ContainerName: container, Resource: name, Divisor: resource.MustParse(divisor)}})
	}
	token := func(seconds int64) v1.VolumeSource {
		p := projectToken("t")
		p.ServiceAccountToken.ExpirationSeconds = &seconds
		return fromSources(p)
	}
	const item0, file0, source0 = "configMap.items[0]", "downwardAPI.items[0]", "projected.sources[0]"
	tests := map[string]struct {
		source v1.VolumeSource
		field  string
		reason string
	}{
		"no config map name":      {fromConfigMap(""), "configMap.name", "empty"},
		"no secret name":          {fromSecret(""), "secret.secretName", "empty"},
		"name with a slash":       {fromSecret("a/b"), "secret.secretName", "slash"},
		"no key":                  {item(v1.KeyToPath{Path: "p"}), item0 + ".key", "empty"},
		"no path":                 {item(v1.KeyToPath{Key: "a"}), item0 + ".path", "empty"},
		"absolute path":           {item(v1.KeyToPath{Key: "a", Path: "/etc/passwd"}), item0 + ".path", "absolute"},
		"..":                      {item(v1.KeyToPath{Key: "a", Path: "../x"}), item0 + ".path", ".."},
		".. within":               {item(v1.KeyToPath{Key: "a", Path: "x/../../y"}), item0 + ".path", ".."},
		"reserved":                {item(v1.KeyToPath{Key: "a", Path: "./..data"}), item0 + ".path", "reserved"},
		"the volume itself":       {item(v1.KeyToPath{Key: "a", Path: "."}), item0 + ".path", "itself"},
		"item mode too large":     {item(v1.KeyToPath{Key: "a", Path: "a", Mode: ptr.To[int32](0o4755)}), item0 + ".mode", "0777"},
		"negative item mode":      {item(v1.KeyToPath{Key: "a", Path: "a", Mode: ptr.To[int32](-1)}), item0 + ".mode", "0777"},
		"mode too large":          {mode(0o1000), "secret.defaultMode", "0777"},
		"mode in decimal":         {mode(644), "secret.defaultMode", "01204"},
		"negative mode":           {mode(-1), "secret.defaultMode", "0777"},
		"neither reference":       {downward(v1.DownwardAPIVolumeFile{}), file0, "exactly one"},
		"both references":         {downward(v1.DownwardAPIVolumeFile{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}, ResourceFieldRef: &v1.ResourceFieldSelector{}}), file0, "exactly one"},
		"unknown field":           {field("metadata.nome"), file0 + ".fieldRef.fieldPath", "metadata.name"},
		"field of env only":       {field("status.podIP"), file0 + ".fieldRef.fieldPath", "environment"},
		"subscript of a string":   {field("metadata.name['x']"), file0 + ".fieldRef.fieldPath", "not one of"},
		"subscript not closed":    {field("metadata.labels['x"), file0 + ".fieldRef.fieldPath", "not one of"},
		"empty subscript":         {field("metadata.labels['']"), file0 + ".fieldRef.fieldPath", "key"},
		"API version":             {downward(v1.DownwardAPIVolumeFile{FieldRef: &v1.ObjectFieldSelector{APIVersion: "v2", FieldPath: "metadata.name"}}), file0 + ".fieldRef.apiVersion", "v1"},
		"no container":            {res("", "limits.cpu", "1"), file0 + ".resourceFieldRef.containerName", "empty"},
		"unknown container":       {res("nix", "limits.cpu", "1"), file0 + ".resourceFieldRef.containerName", `"nix"`},
		"unknown resource":        {res("main", "limits.gpu", "1"), file0 + ".resourceFieldRef.resource", "limits.gpu"},
		"not limits":              {res("main", "cpu", "1"), file0 + ".resourceFieldRef.resource", "limits.cpu"},
		"huge pages without size": {res("main", "limits.hugepages-", "1"), file0 + ".resourceFieldRef.resource", "hugepages"},
		"CPU in Mi":               {res("main", "limits.cpu", "1Mi"), file0 + ".resourceFieldRef.divisor", "1m"},
		"memory in milli":         {res("main", "limits.memory", "1m"), file0 + ".resourceFieldRef.divisor", "1Ki"},
		"negative divisor":        {res("main", "limits.memory", "-1"), file0 + ".resourceFieldRef.divisor", "1Ki"},
		"no sources":              {fromSources(), "projected.sources", "empty"},
		"an empty source":         {fromSources(v1.VolumeProjection{}), source0, "exactly one"},
		"two kinds in a source": {fromSources(v1.VolumeProjection{Secret: projectSecret("s").Secret, ConfigMap: projectConfigMap("c").ConfigMap}),
			source0, "secret, configMap"},
		"a path in two sources": {fromSources(projectConfigMap("app", v1.KeyToPath{Key: "a", Path: "x"}), projectToken("./x")),
			"projected.sources[1].serviceAccountToken.path", "projected.sources[0].configMap.items[0]"},
		"a file as directory": {fromSources(projectConfigMap("app", v1.KeyToPath{Key: "a", Path: "x"}), projectToken("x/y/z")),
			"projected.sources[1].serviceAccountToken.path", "projected.sources[0].configMap.items[0]"},
		"a directory as file": {fromSources(projectToken("x/y/z"), projectConfigMap("app", v1.KeyToPath{Key: "a", Path: "x/y"})),
			"projected.sources[1].configMap.items[0].path", "projected.sources[0].serviceAccountToken"},
		"a short-lived token":          {token(599), source0 + ".serviceAccountToken.expirationSeconds", "600"},
		"an eternal token":             {token(1<<32 + 1), source0 + ".serviceAccountToken.expirationSeconds", "4294967296"},
		"a token without path":         {fromSources(projectToken("")), source0 + ".serviceAccountToken.path", "empty"},
		"a bundle without name":        {fromSources(projectBundle(v1.ClusterTrustBundleProjection{})), source0 + ".clusterTrustBundle", "exactly one"},
		"a bundle with both names":     {fromSources(projectBundle(v1.ClusterTrustBundleProjection{Name: ptr.To("a"), SignerName: ptr.To("b")})), source0 + ".clusterTrustBundle", "exactly one"},
		"a named bundle with selector": {fromSources(projectBundle(v1.ClusterTrustBundleProjection{Name: ptr.To("a"), LabelSelector: &metav1.LabelSelector{}})), source0 + ".clusterTrustBundle.labelSelector", "signerName"},
		"an empty signer":              {fromSources(projectBundle(v1.ClusterTrustBundleProjection{SignerName: ptr.To("")})), source0 + ".clusterTrustBundle.signerName", "empty"},
		"a bad selector": {fromSources(projectBundle(v1.ClusterTrustBundleProjection{SignerName: ptr.To("example.com/a"),
			LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "k", Operator: "Like"}}}})), source0 + ".clusterTrustBundle.labelSelector.matchExpressions[0].operator", "Like"},
	}
	key, secret := v1.KeyToPath{Key: "a", Path: "a"}, v1.SecretVolumeSource{SecretName: "s"}
	if kubeapi.Set(&key, "User", ptr.To[int64](-1)) && kubeapi.Set(&secret, "DefaultUser", ptr.To[int64](1<<31)) {
		negative, large := tests["no key"], tests["no key"]
		negative.source, negative.field, negative.reason = item(key), item0+".user", "2147483647"
		large.source, large.field, large.reason = v1.VolumeSource{Secret: &secret}, "secret.defaultUser", "2147483647"
		tests["negative user"], tests["user too large"] = negative, large
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tc.source)
			b.pod.Spec.Containers = []v1.Container{{Name: "main"}}
			_, err := b.plugin.NewMounter(b.spec, b.pod)
			invalid, ok := errors.AsType[*volume.InvalidSpecError](err)
			if !ok || volume.IsUncertain(err) {
				t.Fatalf("%v", err)
			}
			if invalid.Field != tc.field || !strings.Contains(invalid.Reason, tc.reason) {
				t.Errorf("%v, want %s and %q", err, tc.field, tc.reason)
			}
			if len(b.host.RoleCalls()) > 0 {
				t.Errorf("NewMounter asked for %v", b.host.RoleCalls())
			}
			b.host.AssertClean(t)
		})
	}
}

func TestForeignSpecs(t *testing.T) {
	plugin := configmap.New()
	if err := plugin.Init(fakehost.New(t)); err != nil {
		t.Fatal(err)
	}
	pod := fakehost.Pod("web")
	for name, spec := range map[string]*volume.Spec{
		"nil": nil, "empty": {}, "a secret": volume.NewSpecFromVolume(&v1.Volume{Name: "vol", VolumeSource: fromSecret("s")}),
		"a PersistentVolume": volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{}, false),
	} {
		if plugin.CanSupport(spec) {
			t.Errorf("%s is supported", name)
		}
		if _, err := plugin.GetVolumeName(spec); err == nil {
			t.Errorf("%s has a name", name)
		}
		if _, err := plugin.NewMounter(spec, pod); err == nil || volume.IsUncertain(err) {
			t.Errorf("%s: %v", name, err)
		}
		if got := volume.DependsOn(plugin, spec, pod); got != nil {
			t.Errorf("%s depends on %v", name, got)
		}
	}
}

func TestBadNames(t *testing.T) {
	b := newBench(t, fromConfigMap("app"))
	if _, err := b.plugin.NewMounter(b.spec, nil); err == nil {
		t.Error("no pod")
	}
	pod := b.pod.DeepCopy()
	pod.UID = "../x"
	if _, err := b.plugin.NewMounter(b.spec, pod); err == nil {
		t.Error("a UID with a slash")
	}
	spec := volume.NewSpecFromVolume(&v1.Volume{Name: "a/b", VolumeSource: fromConfigMap("app")})
	if _, err := b.plugin.NewMounter(spec, b.pod); err == nil {
		t.Error("a volume name with a slash")
	}
	if _, err := b.plugin.NewUnmounter("..", b.pod.UID); err == nil {
		t.Error("a volume name ..")
	}
}

// Objects that never went through the API may have any keys.
func TestHostileKeys(t *testing.T) {
	for _, key := range []string{"../x", "/etc/passwd", "..data", "..", ".", "a/b", "a\x00b", ""} {
		b := newBench(t, fromSecret("tls"))
		b.host.Add(secretObject("tls", map[string]string{key: "canary", "fine": "canary"}))
		err := b.trySetUp(volume.MounterArgs{})
		if err == nil || volume.IsUncertain(err) || !strings.Contains(err.Error(), "default/tls") || strings.Contains(err.Error(), "canary") {
			t.Errorf("key %q: %v", key, err)
		}
		b.host.AssertTornDown(t)
	}
}

func TestKeysThatDoNotGoTogether(t *testing.T) {
	b := newBench(t, fromSources(projectConfigMap("app", v1.KeyToPath{Key: "a", Path: "key/below"}), projectSecret("tls")))
	fill(b.host)
	err := b.trySetUp(volume.MounterArgs{})
	if err == nil || volume.IsUncertain(err) || !strings.Contains(err.Error(), "sources[0].configMap.items[0]") || !strings.Contains(err.Error(), "sources[1].secret") {
		t.Errorf("%v must name both sources", err)
	}
	if _, err := os.Lstat(b.dir()); err == nil {
		t.Error("the volume was made")
	}
}
