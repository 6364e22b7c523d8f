package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/testenv/containertest"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/localdiscovery"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
)

// mainVar makes the test binary the command itself.
const mainVar = "CONTROLLER_MAIN"

// daemonSet is what a manifest runs on each node.
func daemonSet(t *testing.T, manifest string) *appsv1.DaemonSet {
	t.Helper()
	for _, object := range manifestOf(t, manifest) {
		if set, ok := object.(*appsv1.DaemonSet); ok {
			return set
		}
	}
	t.Fatalf("%s has no DaemonSet", manifest)
	return nil
}

// The manifest's container offers the disks of its node, also one that is mounted later on the
// host, and one that goes is told of.
func TestDiscoveryInAContainer(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Host}, func(t *testing.T) {
		mounttest.Mount(t, mounttest.Tmpfs("/mnt"))
		mounttest.Mount(t, mount.Request{Target: "/mnt", Options: []string{"rshared"}})
		mounttest.MountExt4(t, testtool.MkdirAll(t, "/mnt/disks/ssd0"))
		server := clustertest.NewServer()
		_, err := server.Writer().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", Labels: map[string]string{v1.LabelHostname: "host1", v1.LabelTopologyZone: "zone1", "other": "label"}}})
		testtool.Must(t, err)
		changes := make(chan struct{}, 100)
		defer server.Store().WatchKind("PersistentVolume", func(volume.ObjectRef) { changes <- struct{}{} })()

		config := containertest.OfPod(t, daemonSet(t, "testdata/local-discovery.yaml").Spec.Template.Spec, map[string]string{"spec.nodeName": "node1"})
		config.Args = append(config.Args, "--bind-address=")
		config.Mounts = append(config.Mounts, sandbox.Mount{Source: clustertest.Serve(t, server), Destination: "/kubeconfig", File: true})
		config.Env = append(config.Env, mainVar+"=1", "KUBECONFIG=/kubeconfig")
		config.Stderr = os.Stderr
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		process, err := sandbox.Start(ctx, config)
		testtool.Must(t, err)
		defer func() { cancel(); process.Wait() }()

		await(t, changes, func() bool { return len(volumesOf(t, server)) == 1 })
		pv := volumesOf(t, server)[0]
		if pv.Spec.Local == nil || pv.Spec.Local.Path != "/mnt/disks/ssd0" || pv.Spec.StorageClassName != "local" || pv.Labels[v1.LabelTopologyZone] != "zone1" || pv.Labels["other"] != "" ||
			pv.Annotations["pv.kubernetes.io/provisioned-by"] != localProvisioner || pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimRetain {
			t.Errorf("%+v", pv)
		}
		if terms := pv.Spec.NodeAffinity.Required.NodeSelectorTerms; len(terms) != 1 || !slices.Equal(terms[0].MatchExpressions[0].Values, []string{"host1"}) {
			t.Errorf("it is pinned to %+v", terms)
		}
		mounttest.MountExt4(t, testtool.MkdirAll(t, "/mnt/disks/ssd1"))
		await(t, changes, func() bool { return len(volumesOf(t, server)) == 2 })
		testtool.Must(t, unix.Unmount("/mnt/disks/ssd0", 0))
		await(t, changes, func() bool {
			return slices.ContainsFunc(volumesOf(t, server), func(pv *v1.PersistentVolume) bool { return pv.Annotations[localdiscovery.MissingAnnotation] != "" })
		})
		mounttest.Mount(t, mounttest.Tmpfs("/mnt/disks/ssd0")) // for the end of the test, which unmounts it
	})
}

// await waits for something to be so, looking after each change.
func await(t *testing.T, changes <-chan struct{}, so func() bool) {
	t.Helper()
	for !so() {
		select {
		case <-changes:
		case <-t.Context().Done():
			t.Fatal("the test has ended")
		}
	}
}

func volumesOf(t *testing.T, server *clustertest.Server) (found []*v1.PersistentVolume) {
	t.Helper()
	all, err := objects.List[*v1.PersistentVolume](t.Context(), server.Store(), "PersistentVolume", "")
	testtool.Must(t, err)
	return all
}

func TestDiscoverFlags(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	for _, args := range [][]string{
		{"--mode=local-discovery"}, {"--mode=local-discovery", "--node-name=n", "--leader-elect"}, {"--discover=/mnt/disks"},
		{"--mode=local-discovery", "--node-name=n", "--provisioner=x"},
	} {
		if _, err := parse(args, os.Stderr); !errors.Is(err, errUsage) {
			t.Errorf("%q: %v", args, err)
		}
	}
	if _, err := parseDisks([]string{"mnt=x"}); err == nil {
		t.Error("a relative directory was taken")
	}
	classes, err := parseDisks([]string{"/a=fast", "/b"})
	if err != nil || len(classes) != 2 || classes[0].StorageClass != "fast" || classes[1].Dir != "/b" || classes[1].StorageClass != "" {
		t.Errorf("%+v, %v", classes, err)
	}
}

// It makes volumes and changes their annotations; it deletes nothing, and sees no pods.
func TestRightsOfDiscovery(t *testing.T) {
	rules := 0
	for _, object := range manifestOf(t, filepath.Join("testdata", "local-discovery.yaml")) {
		role, ok := object.(*rbacv1.ClusterRole)
		if !ok {
			continue
		}
		for _, rule := range role.Rules {
			rules++
			for _, verb := range rule.Verbs {
				may := slices.Contains([]string{"get", "list", "watch"}, verb) || slices.Contains(rule.Resources, "persistentvolumes") && (verb == "create" || verb == "update") || slices.Contains(rule.Resources, "events")
				if !may || slices.Contains(rule.Resources, "*") {
					t.Errorf("it may %s %v", verb, rule.Resources)
				}
			}
		}
	}
	if rules == 0 {
		t.Error("the manifest has no rights")
	}
}
