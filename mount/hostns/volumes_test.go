package hostns_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/volumemanager"
)

// A volume manager in a container, with this mounter: a pod's volumes and a sub-path of one are
// on the host, with what the manager writes into them, and go.
func TestVolumes(t *testing.T) {
	onHost(t, func(t *testing.T, n node) {
		agent := n.start(t, n.container(t, "volumes", "rslave"))
		secret, part := agent.line(t), agent.line(t)
		for _, path := range []string{filepath.Join(secret, "dir", "key"), filepath.Join(part, "key")} {
			if text, err := os.ReadFile(path); err != nil || string(text) != "value" {
				t.Errorf("the host has %q, %v", text, err)
			}
		}
		if e, mounted := mounttest.EntryAt(t, secret); !mounted || e.FSType != "tmpfs" {
			t.Errorf("on the host: %+v", e)
		}
		agent.goOn(t)
		if code, err := agent.Wait(); code != 0 || err != nil {
			t.Errorf("%d, %v", code, err)
		}
		if left := below(t, n.root); len(left) > 0 {
			t.Errorf("left on the host: %v", left)
		}
	})
}

func volumes(ctx context.Context, a *agent) error {
	store := objects.NewStore()
	_, err := store.Create(ctx, &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "s"}, Data: map[string][]byte{"key": []byte("value")}})
	if err != nil {
		return err
	}
	node, err := volumemanager.New(volumemanager.Config{RootDir: a.root, NodeName: "node1", Objects: store, Plugins: plugins.All(), Mounter: a.mounter})
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- node.Run(running) }()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "web", UID: "uid-1"}, Spec: v1.PodSpec{
		Containers: []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "v", MountPath: "/v", SubPath: "dir"}}}},
		Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{
			SecretName: "s", Items: []v1.KeyToPath{{Key: "key", Path: "dir/key"}}}}}},
	}}
	set, err := node.SetUpPod(ctx, pod)
	if err != nil {
		return err
	}
	mounts, _, err := node.ContainerMounts(ctx, pod.UID, "c", containermounts.Options{})
	if err != nil {
		return err
	}
	fmt.Println(set.Volumes[0].Path)
	err = a.pause(mounts[0].Source)
	warning := node.HiddenMounts()
	err = errors.Join(err, want(warning == nil, "it warns: %v", warning), want(strings.HasPrefix(mounts[0].Source, a.root), "the part is at %s", mounts[0].Source), node.TearDownPod(ctx, pod.UID))
	stop()
	return errors.Join(err, <-ended)
}
