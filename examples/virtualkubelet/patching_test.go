package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clienttesting "k8s.io/client-go/testing"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/apiserver"
)

// The node as a whole sends statuses only.
func TestTheNodeWritesNoLabels(t *testing.T) {
	w := newFakeWorld(t)
	web := pod("web", "", memoryVolume("memory"))
	w.create(web)
	w.start()
	w.phase(web, v1.PodRunning)
	w.stop()
	patches := 0
	for _, action := range w.api.Actions() {
		if action.GetResource().Resource != "pods" {
			continue
		}
		if action.GetVerb() == "update" {
			t.Errorf("a pod was updated: %v", action)
		}
		patch, ok := action.(clienttesting.PatchAction)
		if !ok {
			continue
		}
		patches++
		var body map[string]map[string]any
		if err := json.Unmarshal(patch.GetPatch(), &body); err != nil {
			t.Fatal(err)
		}
		if fields := slices.Sorted(maps.Keys(body)); !slices.Equal(fields, []string{"metadata", "status"}) || len(body["metadata"]) != 1 || body["metadata"]["uid"] != "uid-web" || action.GetSubresource() != "status" {
			t.Errorf("sent to %q: %s", action.GetSubresource(), patch.GetPatch())
		}
	}
	if patches == 0 {
		t.Error("no status was written")
	}
}

// At a real API server nobody's labels are taken back, whoever the node is.
func TestLabelsStayAtARealServer(t *testing.T) {
	apiserver.Run(t, apiserver.Config{}, func(t *testing.T, s *apiserver.Server) {
		admin := clientsetOf(t, s.Admin(t))
		for name, set := range map[string]kubernetes.Interface{"admin": admin, "node": clientsetOf(t, s.Kubeconfig(t, "system:node:node1", "system:nodes"))} {
			t.Run(name, func(t *testing.T) { labelsStay(t, admin, set, "shop-"+name) })
		}
	})
}

func labelsStay(t *testing.T, admin, own kubernetes.Interface, namespace string) {
	ctx := t.Context()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(admin.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}))
	must(admin.CoreV1().ServiceAccounts(namespace).Create(ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}))
	mounter := fakemount.New()
	defer mounter.Close()
	warned := make(told, 1000)
	w := &world{t: t, config: config{api: own, name: "node1", dir: t.TempDir(), address: "192.0.2.1", hold: true, mounter: mounter,
		log: slog.New(slog.NewTextHandler(warned, &slog.HandlerOptions{Level: slog.LevelWarn}))}}
	pods := admin.CoreV1().Pods(namespace)
	web := pod("web", "", labelsVolume("about"))
	web.Namespace, web.UID = namespace, ""
	web.Spec.ReadinessGates = []v1.PodReadinessGate{{ConditionType: "shop.example/open"}}
	running, err := pods.Create(ctx, web, metav1.CreateOptions{})
	must(running, err)
	w.start()
	get := func() *v1.Pod {
		p, err := pods.Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	w.eventually("the pod runs", func() bool { return get().Status.Phase == v1.PodRunning })
	mended := 0
	for i := range 30 {
		key := fmt.Sprintf("label-%d", i)
		// Somebody else's status, which the node mends when it writes its own.
		must(pods.Patch(ctx, "web", types.MergePatchType, []byte(`{"status":{"message":"not so"}}`), metav1.PatchOptions{}, "status"))
		must(pods.Patch(ctx, "web", types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:"set"},"annotations":{%q:"set"}}}`, key, key), metav1.PatchOptions{}))
		w.eventually("the node has seen the label", func() bool { return strings.Contains(w.file(running, "downward-api", "about/labels"), key+"=") })
		if get().Status.Message == "" {
			mended++
		}
	}
	t.Logf("the node has written its status after %d of 30 changes", mended)
	if mended == 0 {
		t.Error("the node has written no status meanwhile")
	}
	told := len(warned) // a write that the end of the node cuts off is no failure
	w.stop()
	got := get()
	for i := range 30 {
		if key := fmt.Sprintf("label-%d", i); got.Labels[key] != "set" || got.Annotations[key] != "set" {
			t.Errorf("%s was taken back", key)
		}
	}
	for range told {
		if line := <-warned; strings.Contains(line, "status") {
			t.Error(line)
		}
	}
}

// told are the lines of a log.
type told chan string

func (w told) Write(line []byte) (int, error) {
	select {
	case w <- string(line):
		return len(line), nil
	default:
		return 0, errors.New("too many warnings")
	}
}
