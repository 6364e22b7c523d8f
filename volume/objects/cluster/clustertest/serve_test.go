package clustertest_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
)

// A program with nothing but a kubeconfig creates, changes and deletes, in whatever form
// client-go sends that.
func TestServe(t *testing.T) {
	config, err := clientcmd.BuildConfigFromFlags("", clustertest.Serve(t, clustertest.NewServer()))
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{"", "application/json", "application/vnd.kubernetes.protobuf"} {
		config.ContentType = form
		set, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		maps := set.CoreV1().ConfigMaps("ops")
		made, err := maps.Create(t.Context(), &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Data: map[string]string{"a": "1"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("%s: %v", form, err)
		}
		made.Data["a"] = "2"
		if made, err = maps.Update(t.Context(), made, metav1.UpdateOptions{}); err != nil || made.Data["a"] != "2" {
			t.Fatalf("%s: %v, %v", form, made, err)
		}
		if err := maps.Delete(t.Context(), "m", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &made.UID}}); err != nil {
			t.Fatalf("%s: %v", form, err)
		}
	}
	set := kubernetes.NewForConfigOrDie(config)
	if left, err := set.CoreV1().ConfigMaps("ops").List(t.Context(), metav1.ListOptions{}); err != nil || len(left.Items) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}
