package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/apiserver"
)

func clientsetOf(t *testing.T, kubeconfig []byte) kubernetes.Interface {
	t.Helper()
	access, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	access.QPS = -1
	set, err := kubernetes.NewForConfig(access)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// A pod's life at a real API server, with what a node's identity may do and no
// more.
func TestPodsLifeAtARealServer(t *testing.T) {
	apiserver.Run(t, apiserver.Config{}, func(t *testing.T, s *apiserver.Server) {
		admin := clientsetOf(t, s.Admin(t))
		mounter := fakemount.New()
		defer mounter.Close()
		w := &world{t: t, config: config{api: clientsetOf(t, s.Kubeconfig(t, "system:node:node1", "system:nodes")), name: "node1", dir: t.TempDir(),
			address: "192.0.2.1", hold: true, mounter: mounter, log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))}}
		ctx := t.Context()
		must := func(_ any, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(admin.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{}))
		must(admin.CoreV1().ServiceAccounts("shop").Create(ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}))
		must(admin.CoreV1().ConfigMaps("shop").Create(ctx, configMap("config", "colour", "blue"), metav1.CreateOptions{}))
		token := v1.Volume{Name: "token", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
			{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}}}}}}
		web := pod("web", "", configVolume("config"), memoryVolume("memory"), token)
		web.Spec.ServiceAccountName = "default"
		web, err := admin.CoreV1().Pods("shop").Create(ctx, web, metav1.CreateOptions{})
		must(web, err)
		w.start()
		get := func() *v1.Pod {
			p, err := admin.CoreV1().Pods("shop").Get(context.Background(), "web", metav1.GetOptions{})
			if err != nil {
				return nil
			}
			return p
		}
		w.eventually("the pod runs", func() bool { p := get(); return p != nil && p.Status.Phase == v1.PodRunning })
		if c := condition(get(), v1.PodReady); c.Status != v1.ConditionTrue {
			t.Errorf("ready: %v", c)
		}
		if c := w.file(web, "configmap", "config/colour"); c != "blue" {
			t.Errorf("the config map's volume has %q", c)
		}
		if c := w.file(web, "projected", "token/token"); strings.Count(c, ".") != 2 {
			t.Errorf("the token's volume has %d bytes", len(c))
		}
		red := configMap("config", "colour", "red")
		red.UID = "" // the server has given it its own
		must(admin.CoreV1().ConfigMaps("shop").Update(ctx, red, metav1.UpdateOptions{}))
		w.eventually("the new value is in the file", func() bool { return w.file(web, "configmap", "config/colour") == "red" })
		w.stop()
		w.start()
		w.eventually("the node is ready", func() bool {
			node, err := admin.CoreV1().Nodes().Get(ctx, "node1", metav1.GetOptions{})
			return err == nil && len(node.Status.Conditions) > 0 && node.Status.Conditions[0].Status == v1.ConditionTrue
		})
		if err := admin.CoreV1().Pods("shop").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.eventually("the pod is gone", func() bool { return get() == nil })
		w.eventually("its volumes are gone", func() bool { _, err := os.Stat(w.podDir(web)); return errors.Is(err, os.ErrNotExist) })
		w.stop()
	})
}
