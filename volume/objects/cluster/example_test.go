package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster"
	"github.com/podvol/podvol/volume/podfiles"
)

// A kubelet has a clientset and a factory already; podvol adds its informers to
// the factory, and watches config maps and secrets one by one.
func ExampleFromInformers() {
	clientset := fake.NewClientset(
		&v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "data"}, Spec: v1.PersistentVolumeClaimSpec{VolumeName: "pv1"}},
		&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "app"}, Data: map[string]string{"mode": "quiet"}},
	)
	factory := informers.NewSharedInformerFactory(clientset, time.Hour)

	client, err := cluster.FromInformers(factory, clientset, cluster.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer factory.Shutdown()
	defer cancel()
	factory.Start(ctx.Done())
	if err := client.WaitForSync(ctx); err != nil {
		fmt.Println(err)
		return
	}

	claim, err := objects.Get[*v1.PersistentVolumeClaim](ctx, client, volume.NewObjectRef("PersistentVolumeClaim", "ops", "data"))
	fmt.Println(claim.Spec.VolumeName, err)
	config, err := objects.Get[*v1.ConfigMap](ctx, client, volume.NewObjectRef("ConfigMap", "ops", "app"))
	fmt.Println(config.Data["mode"], err)
	_, err = client.Get(ctx, volume.NewObjectRef("Secret", "ops", "password"))
	fmt.Println(errors.Is(err, volume.ErrNotFound))
	// Output:
	// pv1 <nil>
	// quiet <nil>
	// true
}

// A program without informers reads what it needs, here for the files of a volume.
func ExampleRead() {
	clientset := fake.NewClientset(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "tls"}, Data: map[string][]byte{"key": []byte("…")}})
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "web"}, Spec: v1.PodSpec{
		Volumes: []v1.Volume{{Name: "tls", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "tls"}}}}}}

	files, err := podfiles.Render(context.Background(), pod, "tls", podfiles.Sources{Objects: cluster.Read(clientset)}, podfiles.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(files.Paths())
	// Output:
	// [key]
}
