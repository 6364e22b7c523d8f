package manifest_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/manifest"
)

const pod = `apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: web, volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, emptyDir: {}}]
`

// workload returns a manifest whose template has one volume "data".
func workload(apiVersion, kind, name, spec string) string {
	template := `template:
    metadata: {labels: {app: x}}
    spec:
      containers: [{name: c, volumeMounts: [{name: data, mountPath: /data}]}]
      volumes: [{name: data, emptyDir: {}}]
`
	if kind == "CronJob" {
		template = "jobTemplate: {spec: {template: {spec: {containers: [{name: c}]}}}}\n"
	}
	return "apiVersion: " + apiVersion + "\nkind: " + kind + "\nmetadata: {name: " + name + ", namespace: ops}\nspec:\n  " + spec + "\n  " + template
}

func decode(t *testing.T, text string) *manifest.Set {
	t.Helper()
	set, err := manifest.Loader{NodeName: "node1"}.Decode("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func podNames(set *manifest.Set) (names []string) {
	for _, p := range set.Pods() {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	return names
}

func TestWorkloadsBecomePods(t *testing.T) {
	const apps, batch = "apps/v1", "batch/v1"
	tests := map[string]struct {
		text string
		want []string
	}{
		"Pod":                        {pod, []string{"default/web"}},
		"Deployment":                 {workload(apps, "Deployment", "d", "replicas: 2"), []string{"ops/d-0", "ops/d-1"}},
		"replicas default to one":    {workload(apps, "ReplicaSet", "r", "minReadySeconds: 1"), []string{"ops/r-0"}},
		"no replicas":                {workload(apps, "Deployment", "d", "replicas: 0"), nil},
		"ReplicationController":      {workload("v1", "ReplicationController", "rc", "replicas: 1"), []string{"ops/rc-0"}},
		"StatefulSet":                {workload(apps, "StatefulSet", "db", "replicas: 2"), []string{"ops/db-0", "ops/db-1"}},
		"StatefulSet with a start":   {workload(apps, "StatefulSet", "db", "ordinals: {start: 5}"), []string{"ops/db-5"}},
		"DaemonSet":                  {workload(apps, "DaemonSet", "ds", "minReadySeconds: 1"), []string{"ops/ds-0"}},
		"Job":                        {workload(batch, "Job", "j", "parallelism: 3"), []string{"ops/j-0", "ops/j-1", "ops/j-2"}},
		"Job with fewer completions": {workload(batch, "Job", "j", "{parallelism: 3, completions: 2"), nil},
		"suspended Job":              {workload(batch, "Job", "j", "suspend: true"), nil},
		"CronJob":                    {workload(batch, "CronJob", "cj", "schedule: '@daily'"), []string{"ops/cj-0"}},
	}
	fewer := tests["Job with fewer completions"]
	fewer.text, fewer.want = workload(batch, "Job", "j", "parallelism: 3\n  completions: 2"), []string{"ops/j-0", "ops/j-1"}
	tests["Job with fewer completions"] = fewer
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			set := decode(t, tc.text)
			if diff := cmp.Diff(tc.want, podNames(set)); diff != "" {
				t.Error(diff)
			}
			for _, p := range set.Pods() {
				stored, err := objects.Get[*v1.Pod](t.Context(), set, volume.NewObjectRef("Pod", p.Namespace, p.Name))
				if err != nil || !cmp.Equal(stored, p) {
					t.Errorf("%s is not in the store: %v", p.Name, err)
				}
				if p.Spec.NodeName != "node1" || p.Spec.ServiceAccountName != "default" || p.UID == "" {
					t.Errorf("%s lacks node, account or UID", p.Name)
				}
			}
			if tc.want == nil && len(set.Skipped) != 1 {
				t.Errorf("nobody is told that there are no pods: %v", set.Skipped)
			}
		})
	}
}

func TestStatefulSetBringsItsClaims(t *testing.T) {
	const claims = `replicas: 2
  selector: {matchLabels: {app: db}}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}`
	const own = `
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data-db-1, namespace: ops, labels: {own: "yes"}}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 2Gi}}}
`
	set := decode(t, workload("apps/v1", "StatefulSet", "db", claims)+own)
	for i, p := range set.Pods() {
		want := []string{"data-db-0", "data-db-1"}[i]
		if len(p.Spec.Volumes) != 1 || p.Spec.Volumes[0].PersistentVolumeClaim.ClaimName != want {
			t.Errorf("%s has volumes %v, want the claim %s in place of the emptyDir", p.Name, p.Spec.Volumes, want)
		}
		if p.Labels["apps.kubernetes.io/pod-index"] == "" {
			t.Errorf("%s has labels %v", p.Name, p.Labels)
		}
	}
	list, err := objects.List[*v1.PersistentVolumeClaim](t.Context(), set, "PersistentVolumeClaim", "ops")
	if err != nil || len(list) != 2 {
		t.Fatalf("%d claims, err %v; want two", len(list), err)
	}
	if list[0].Labels["app"] != "db" || list[0].UID == "" || list[1].Labels["own"] != "yes" {
		t.Errorf("claims %v and %v; want the set's labels on one, and the other as it was written", list[0], list[1])
	}
}

func TestUIDs(t *testing.T) {
	uid := func(node, text string, n int) string {
		set, err := manifest.Loader{NodeName: node}.Decode("x", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return string(set.Pods()[n].UID)
	}
	deployment := workload("apps/v1", "Deployment", "d", "replicas: 2")
	edited := strings.ReplaceAll(deployment, "/data", "/other")
	base := uid("node1", deployment, 0)
	if got := uid("node1", edited, 0); got != base {
		t.Error("an edit changes the UID")
	}
	for name, other := range map[string]string{
		"ordinal":   uid("node1", deployment, 1),
		"node":      uid("node2", deployment, 0),
		"kind":      uid("node1", workload("apps/v1", "ReplicaSet", "d", "replicas: 2"), 0),
		"name":      uid("node1", workload("apps/v1", "Deployment", "e", "replicas: 2"), 0),
		"namespace": uid("node1", strings.Replace(deployment, "namespace: ops", "namespace: dev", 1), 0),
	} {
		if other == base {
			t.Errorf("another %s has the same UID", name)
		}
	}
	if got := uid("node1", strings.Replace(pod, "{name: web}", "{name: web, uid: my-own}", 1), 0); got != "my-own" {
		t.Errorf("UID %q, want the manifest's own", got)
	}
}

func TestOtherObjects(t *testing.T) {
	set := decode(t, `
apiVersion: v1
kind: Secret
metadata: {name: s}
data: {a: b2xk, b: Yg==}
stringData: {a: new}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: c}, data: {k: "1"}}
- {apiVersion: v1, kind: Service, metadata: {name: svc}}
---
apiVersion: v1
kind: PersistentVolumeList
items: [{metadata: {name: pv, resourceVersion: "7"}, spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: /srv}}}]
---
[{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}},
 {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1"}}]
---
{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fast"}, "provisioner": "kubernetes.io/no-provisioner"}
{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
---
# nothing but a comment
---
apiVersion: management.cattle.io/v3
kind: Node
metadata: {name: custom}
`)
	secret, err := objects.Get[*v1.Secret](t.Context(), set, volume.NewObjectRef("Secret", "default", "s"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string][]byte{"a": []byte("new"), "b": []byte("b")}, secret.Data); diff != "" || secret.StringData != nil {
		t.Error(diff)
	}
	for _, ref := range []volume.ObjectRef{
		volume.NewObjectRef("ConfigMap", "default", "c"), volume.NewObjectRef("PersistentVolume", "", "pv"),
		volume.NewObjectRef("ServiceAccount", "default", "robot"), volume.NewObjectRef("Node", "", "node1"),
		volume.NewObjectRef("StorageClass", "", "fast"),
	} {
		if _, err := set.Get(t.Context(), ref); err != nil {
			t.Error(err)
		}
	}
	var skipped []string
	for _, s := range set.Skipped {
		skipped = append(skipped, s.Ref.String())
	}
	if diff := cmp.Diff([]string{"Service svc", "Widget w", "Node custom"}, skipped); diff != "" {
		t.Error(diff)
	}
	if last := set.Skipped[2]; last.Document != 7 || last.File != "test.yaml" {
		t.Errorf("skipped %v, want document 7", last)
	}
}

// ClusterTrustBundles are stable since Kubernetes 1.37, and were beta before.
// A minor before 1.37 refuses the stable version, and names the one it knows.
func TestTrustBundlesOfEachVersion(t *testing.T) {
	versions := []string{certificatesv1beta1.SchemeGroupVersion.Version}
	if newest := kubeapi.TrustBundleVersion().Version; newest != versions[0] {
		versions = append(versions, newest)
	}
	for _, version := range versions {
		set := decode(t, "apiVersion: certificates.k8s.io/"+version+`
kind: ClusterTrustBundle
metadata: {name: roots}
spec:
  trustBundle: |
    -----BEGIN CERTIFICATE-----
    cm9vdA==
    -----END CERTIFICATE-----
`)
		object, err := set.Get(t.Context(), volume.NewObjectRef("ClusterTrustBundle", "", "roots"))
		if err != nil {
			t.Fatalf("%s: %v", version, err)
		}
		bundle, _ := kubeapi.TrustBundleOf(object)
		if kind := object.(runtime.Object).GetObjectKind().GroupVersionKind(); !strings.Contains(bundle.PEM, "cm9vdA==") || kind.GroupVersion() != kubeapi.TrustBundleVersion() {
			t.Errorf("%s: %v: %v", version, kind, bundle)
		}
	}
}

func TestNodes(t *testing.T) {
	on := func(name, node string) string {
		p := strings.Replace(pod, "name: web", "name: "+name, 1)
		if node != "" {
			p = strings.Replace(p, "spec:\n", "spec:\n  nodeName: "+node+"\n", 1)
		}
		return p + "---\n"
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		flag, text, node string
		pods             []string
		skipped          int
	}{
		"given":                  {"node1", on("a", "node1") + on("b", "node2") + on("c", ""), "node1", []string{"default/a", "default/c"}, 1},
		"from the pods":          {"", on("a", "node2") + on("c", ""), "node2", []string{"default/a", "default/c"}, 0},
		"from the machine":       {"", on("c", ""), strings.ToLower(host), []string{"default/c"}, 0},
		"given, all are foreign": {"node3", on("a", "node1"), "node3", nil, 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			set, err := manifest.Loader{NodeName: tc.flag}.Decode("x", []byte(tc.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.pods, podNames(set)); diff != "" || set.NodeName != tc.node || len(set.Skipped) != tc.skipped {
				t.Errorf("node %q, skipped %v, pods %s", set.NodeName, set.Skipped, diff)
			}
		})
	}
	_, err = manifest.Loader{}.Decode("x", []byte(on("a", "node1")+on("b", "node2")))
	if err == nil || !strings.Contains(err.Error(), "--node") || !strings.Contains(err.Error(), "node1, node2") {
		t.Errorf("several nodes: %v", err)
	}
}

// A manifest says what is wanted: that a pod has ended somewhere, as kubectl get
// shows it, is no reason not to mount it here.
func TestPodsPhaseIsNotTakenOver(t *testing.T) {
	set := decode(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c}]}\nstatus: {phase: Succeeded, podIP: 10.0.0.7}\n")
	if status := set.Pods()[0].Status; status.Phase != "" || status.PodIP != "10.0.0.7" {
		t.Errorf("status %+v", status)
	}
}

func TestPaths(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	named := func(name string) string { return strings.Replace(pod, "name: web", "name: "+name, 1) }
	write("dir/b.yaml", named("b"))
	write("dir/a.yml", "\ufeff"+strings.ReplaceAll(named("a"), "\n", "\r\n"))
	write("dir/c.json", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"c"},"spec":{"containers":[{"name":"c"}]}}`)
	write("dir/README.md", "no manifest")
	write("dir/below/d.yaml", named("d"))
	empty := filepath.Dir(write("empty/README.md", "no manifest"))
	binary := write("binary.yaml", "\x7fELF\x00")
	latin := write("latin.yaml", "a: \xe4")
	huge := write("huge.yaml", "#"+strings.Repeat("x", manifest.MaxFileBytes))
	single := write("single.yaml", named("single"))

	loader := manifest.Loader{NodeName: "n", Stdin: strings.NewReader(named("stdin"))}
	set, err := loader.Load(single, "-", filepath.Join(dir, "dir"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"default/single", "default/stdin", "default/a", "default/b", "default/c"}
	if diff := cmp.Diff(want, podNames(set)); diff != "" {
		t.Error(diff)
	}
	for name, tc := range map[string]struct {
		paths []string
		want  error
	}{
		"no path":         {nil, manifest.ErrEmpty},
		"no such file":    {[]string{filepath.Join(dir, "none")}, fs.ErrNotExist},
		"empty directory": {[]string{empty}, manifest.ErrEmpty},
		"empty stdin":     {[]string{"-"}, manifest.ErrEmpty}, // it was read above
		"binary":          {[]string{single, binary}, manifest.ErrNotText},
		"not UTF-8":       {[]string{latin}, manifest.ErrNotText},
		"too large":       {[]string{huge}, manifest.ErrTooLarge},
		"the same twice":  {[]string{single, single}, manifest.ErrDuplicate},
	} {
		t.Run(name, func(t *testing.T) {
			set, err := loader.Load(tc.paths...)
			if !errors.Is(err, tc.want) || set != nil {
				t.Errorf("err = %v, want %v", err, tc.want)
			}
		})
	}
	if _, err := loader.Load("-", "-"); err == nil || !strings.Contains(err.Error(), "only once") {
		t.Errorf("standard input twice: %v", err)
	}
	_, err = loader.Load(single, filepath.Join(dir, "dir"), single)
	if err == nil || strings.Count(err.Error(), single) != 2 {
		t.Errorf("%v does not name both places", err)
	}
}

// A manifest is a wish: the phase that a pod had elsewhere does not keep it from running.
func TestPhasesOfPodsArePassedOver(t *testing.T) {
	for _, phase := range []string{"Pending", "Running", "Succeeded", "Failed"} {
		set := decode(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}]}\nstatus: {phase: "+phase+"}\n")
		if pods := set.Pods(); len(pods) != 1 || pods[0].Status.Phase != "" {
			t.Errorf("%s: %+v", phase, pods)
		}
	}
}
