package manifest_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume/objects/manifest"
)

// faultsOf returns "document field" of every fault.
func faultsOf(t *testing.T, err error) (faults []string) {
	t.Helper()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("%v is no joined error", err)
	}
	for _, e := range joined.Unwrap() {
		fault, ok := errors.AsType[*manifest.Error](e)
		if !ok || fault.File == "" {
			t.Fatalf("%v is no manifest.Error with a file", e)
		}
		faults = append(faults, string('0'+rune(fault.Document))+" "+fault.Field)
	}
	return faults
}

func TestUnknownFieldsSayWhichOneIsMeant(t *testing.T) {
	for text, want := range map[string]string{
		"kind: Pod\nspec: {containers: [{name: c, volumeMount: []}]}":                                         `spec.containers[0].volumeMount: there is no such field; did you mean "volumeMounts"?`,
		"kind: Pod\nspec: {volumes: [{name: v, emptydir: {}}]}":                                               `spec.volumes[0].emptydir: there is no such field; did you mean "emptyDir"?`,
		"kind: Pod\nmetdata: {}":                                                                              `metdata: there is no such field; did you mean "metadata"?`,
		"kind: Pod\nspec: {securityContext: {fsGruop: 7}}":                                                    `spec.securityContext.fsGruop: there is no such field; did you mean "fsGroup"?`,
		"kind: Pod\nspec: {volumes: [{name: v, projected: {sources: [{downwardAPI: {items: [{pth: a}]}}]}}]}": `spec.volumes[0].projected.sources[0].downwardAPI.items[0].pth: there is no such field; did you mean "path"?`,
		"kind: Pod\nspec: {purpose: none}":                                                                    "spec.purpose: there is no such field",
		"kind: ConfigMap\nmetadata: {labels: {a.b/c: d}, lables: {}}":                                         `metadata.lables: there is no such field; did you mean "labels"?`,
	} {
		_, err := manifest.Loader{}.Decode("bad.yaml", []byte("apiVersion: v1\n"+text+"\n"))
		if err == nil || !strings.Contains(err.Error()+"\n", want+"\n") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestUnknownKindsSayWhichOneIsMeant(t *testing.T) {
	_, err := manifest.Loader{}.Decode("bad.yaml", []byte("apiVersion: v1\nkind: Pood\n"))
	if err == nil || !strings.Contains(err.Error(), `did you mean "Pod"? Kinds that are read`) {
		t.Error(err)
	}
}

func TestBadManifests(t *testing.T) {
	replace := func(old, new string) string {
		if !strings.Contains(pod, old) {
			t.Fatalf("the pod has no %q", old)
		}
		return strings.Replace(pod, old, new, 1)
	}
	tests := map[string]struct {
		text string
		want []string
	}{
		"unknown field":          {replace("spec:\n", "spec:\n  volumez: []\n"), []string{"1 spec.volumez"}},
		"unknown field's case":   {replace("emptyDir", "emptydir"), []string{"1 spec.volumes[0].emptydir"}},
		"duplicate field":        {replace("spec:\n", "spec:\n  hostNetwork: true\n  hostNetwork: true\n"), []string{"1 spec.hostNetwork"}},
		"duplicate in a list":    {replace("emptyDir: {}", "emptyDir: {medium: Memory, medium: Memory}"), []string{"1 spec.volumes[0].emptyDir.medium"}},
		"duplicate in JSON":      {`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"a":"","a":""}}`, []string{"1 data.a"}},
		"wrong type":             {replace("emptyDir: {}", "nfs: {server: 7, path: /}"), []string{"1 spec.volumes[0].nfs.server"}},
		"no quantity":            {replace("emptyDir: {}", "emptyDir: {sizeLimit: 10 Gi}"), []string{"1 spec.volumes[0].emptyDir.sizeLimit"}},
		"no base64":              {"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {a: '*'}", []string{"1 data.a"}},
		"no kind":                {replace("kind: Pod\n", ""), []string{"1 kind"}},
		"no apiVersion":          {replace("apiVersion: v1\n", ""), []string{"1 apiVersion"}},
		"misspelt kind":          {replace("kind: Pod", "kind: Pood"), []string{"1 "}},
		"old apiVersion":         {workload("extensions/v1beta1", "Deployment", "d", "replicas: 1"), []string{"1 "}},
		"unknown group":          {workload("aps/v1", "Deployment", "d", "replicas: 1"), []string{"1 "}},
		"a scalar":               {"just text", []string{"1 "}},
		"broken YAML":            {"a: [", []string{"1 "}},
		"a mapping as a key":     {"{{a: b}: c}", []string{"1 "}},
		"negative replicas":      {workload("apps/v1", "Deployment", "d", "replicas: -1"), []string{"1 spec.replicas"}},
		"absurd replicas":        {workload("apps/v1", "Deployment", "d", "replicas: 2000000000"), []string{"1 spec.replicas"}},
		"no template":            {"apiVersion: v1\nkind: ReplicationController\nmetadata: {name: rc}\nspec: {replicas: 1}", []string{"1 spec.template"}},
		"fault in a template":    {strings.Replace(workload("apps/v1", "Deployment", "d", "replicas: 0"), "emptyDir: {}", "nfs: {path: x}", 1), []string{"1 spec.template.spec.volumes[0].nfs.server", "1 spec.template.spec.volumes[0].nfs.path"}},
		"two sources":            {replace("emptyDir: {}", "emptyDir: {}, hostPath: {path: /}"), []string{"1 spec.volumes[0]"}},
		"no source":              {replace("emptyDir: {}", ""), []string{"1 spec.volumes[0]"}},
		"volume of that name":    {replace("[{name: data, mount", "[{name: date, mount"), []string{"1 spec.containers[0].volumeMounts[0].name"}},
		"UID with a slash":       {replace("{name: web}", "{name: web, uid: a/b}"), []string{"1 metadata.uid"}},
		"the same pod twice":     {pod + "---\n" + pod, []string{"2 "}},
		"the same UID twice":     {replace("{name: web}", "{name: a, uid: u}") + "---\n" + replace("{name: web}", "{name: b, uid: u}"), []string{"2 metadata.uid"}},
		"lists without end":      {strings.Repeat("[", 8) + strings.Repeat("]", 8), []string{"1 [0][0][0][0][0]"}},
		"key in both":            {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {k: x}\nbinaryData: {k: eA==}", []string{"1 binaryData[k]"}},
		"key with a slash":       {"apiVersion: v1\nkind: Secret\nmetadata: {name: c}\nstringData: {a/b: x}", []string{"1 data[a/b]"}},
		"a volume without size":  {"apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: p}\nspec: {capacity: {storage: -1}, accessModes: [X], nfs: {server: s, path: /}}", []string{"1 spec.capacity.storage", "1 spec.accessModes[0]"}},
		"a class without one":    {"apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: c}\nvolumeBindingMode: Never", []string{"1 provisioner", "1 volumeBindingMode"}},
		"all documents together": {"kind: Pod\n---\n" + replace("{}", "{sizeLimit: -1}") + "---\n# none\n---\n" + replace("spec:", "spek:"), []string{"1 apiVersion", "3 spek", "2 spec.volumes[0].emptyDir.sizeLimit"}},
		"empty":                  {"", []string{"0 "}},
		"comments alone":         {"# a\n---\n# b\n", []string{"0 "}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			set, err := manifest.Loader{}.Decode("bad.yaml", []byte(tc.text))
			if err == nil || set != nil {
				t.Fatal("accepted")
			}
			if diff := cmp.Diff(tc.want, faultsOf(t, err)); diff != "" {
				t.Errorf("%v: %s", err, diff)
			}
		})
	}
}

func TestErrorsSayWhere(t *testing.T) {
	_, err := manifest.Loader{}.Decode("bad.yaml", []byte("# first\n---\n"+pod+"---\n"+strings.Replace(pod, "spec:", "spek:", 1)))
	const want = `bad.yaml: document 2 (line 10): Pod default/web: spek: there is no such field; did you mean "spec"?`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	_, err = manifest.Loader{}.Decode("bad.yaml", []byte("a: b\n---\nc: d\ne: }\n"))
	if err == nil || !strings.Contains(err.Error(), "near line 3") {
		t.Errorf("%v does not count lines from the file's first", err)
	}
}

func TestErrorsDoNotShowSecrets(t *testing.T) {
	for name, text := range map[string]string{
		"no base64":     "data: {password: hunter2!}",
		"a number":      "stringData: {password: 20022002}",
		"a list":        "stringData: {password: [hunter2]}",
		"broken YAML":   "stringData: {password: hunter2, [}",
		"no anchor":     "stringData: {password: *hunter2}",
		"an odd tag":    "stringData: {password: !!int hunter2}",
		"a field wrong": "stringdata: {password: hunter2}",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := manifest.Loader{}.Decode("s.yaml", []byte("apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n"+text))
			if err == nil || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "20022002") {
				t.Errorf("err = %v", err)
			}
		})
	}
}

func TestMergeKeysAreNoDuplicates(t *testing.T) {
	set := decode(t, `apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  volumes: [{name: a, emptyDir: &base {medium: Memory, sizeLimit: 1Mi}}, {name: b, emptyDir: {<<: *base, sizeLimit: 2Mi}}]
  containers: [{name: c}]
`)
	b := set.Pods()[0].Spec.Volumes[1].EmptyDir
	if b.Medium != v1.StorageMediumMemory || b.SizeLimit.String() != "2Mi" {
		t.Errorf("merged to %v", b)
	}
}
