package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// daemonSets runs the manifests of the examples as they are, but for the pull policy: there
// is no registry.
type daemonSets struct{ handover }

// daemonRoot is the root directory in the manifest of the node.
const daemonRoot = "/var/lib/podvol-virtualkubelet/volumes"

func (d daemonSets) run(ctx context.Context, w io.Writer) error {
	if err := d.apply(ctx, files("one")...); err != nil {
		return err
	}
	if err := d.inContainer(ctx, w); err != nil {
		return fmt.Errorf("the node's DaemonSet: %w", err)
	}
	if err := d.discovery(ctx, w); err != nil {
		return fmt.Errorf("the DaemonSet of local discovery: %w", err)
	}
	return nil
}

// applyManifest applies a manifest of an example.
func (d daemonSets) applyManifest(ctx context.Context, path string) error {
	text, err := os.ReadFile(filepath.Join(d.o.Module, "examples", path))
	if err != nil {
		return err
	}
	cmd := inCluster(ctx, d.o, "kubectl", "apply", "-f", "-")
	cmd.Stdin = strings.NewReader(strings.ReplaceAll(string(text), ":latest\n", ":latest\n        imagePullPolicy: Never\n"))
	_, err = quietly(cmd)
	return err
}

// rolledOut waits until a DaemonSet runs on the node.
func (d daemonSets) rolledOut(ctx context.Context, name string) error {
	_, err := d.kubectl(ctx, nil, "rollout", "status", "--namespace=kube-system", "daemonset/"+name, "--timeout=3m")
	return err
}

// podInContainer is a pod for the node in a container.
func podInContainer(node string) object {
	spec := twoContainersOnce(append(nodesVolumes()[:2:2], object{"name": "about", "downwardAPI": object{"items": labels()}},
		object{"name": "config", "configMap": object{"name": "files"}}, object{"name": "secret", "secret": object{"secretName": "files"}},
		object{"name": "projected", "projected": object{"sources": []object{{"serviceAccountToken": object{"path": "token"}}}}}))
	spec["nodeName"], spec["tolerations"], spec["automountServiceAccountToken"] = node, []object{{"operator": "Exists"}}, false
	return object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": "inner", "labels": object{"app": "inner"}}, "spec": spec}
}

// inContainer runs podvol's node in a pod of the kubelet's, and a pod on it, which goes on
// while the DaemonSet is updated.
func (d daemonSets) inContainer(ctx context.Context, w io.Writer) error {
	const name, inner = "podvol-node", "podvol-node1"
	if err := d.applyManifest(ctx, "virtualkubelet/testdata/daemonset.yaml"); err != nil {
		return err
	}
	if err := d.rolledOut(ctx, name); err != nil {
		return err
	}
	for _, condition := range []string{"create", "condition=Ready"} {
		if _, err := d.kubectl(ctx, nil, "wait", "--for="+condition, "--timeout=2m", "node/"+inner); err != nil {
			return err
		}
	}
	if err := d.apply(ctx, podInContainer(inner)); err != nil {
		return err
	}
	if _, err := d.kubectl(ctx, nil, "wait", "--for=condition=Ready", "--timeout=3m", "pod/inner"); err != nil {
		return err
	}
	before, err := d.node.look(ctx, daemonRoot)
	if err != nil {
		return err
	}
	if _, err := d.kubectl(ctx, nil, "rollout", "restart", "--namespace=kube-system", "daemonset/"+name); err != nil {
		return err
	}
	if err := d.rolledOut(ctx, name); err != nil {
		return err
	}
	after, err := d.node.look(ctx, daemonRoot)
	if err != nil {
		return err
	}
	if len(before.mounts) == 0 {
		return fmt.Errorf("the host sees no mount below %s", daemonRoot)
	}
	before.tasks, after.tasks = nil, nil // the node's own has been replaced
	for id := range before.inside {
		if _, goesOn := after.inside[id]; !goesOn {
			delete(before.inside, id)
		}
	}
	if err := before.same(after); err != nil {
		return err
	}
	if err := d.node.oneStartEach(ctx, daemonRoot); err != nil {
		return err
	}
	fmt.Fprintf(w, "podvol's node in a container: the host sees %d mounts, and a pod goes on with them while the DaemonSet is updated\n", len(before.mounts))
	if _, err := d.kubectl(ctx, nil, "delete", "pod", "inner", "--timeout=2m"); err != nil {
		return err
	}
	after, err = d.node.look(ctx, daemonRoot)
	if err == nil && len(after.mounts) > 0 {
		err = fmt.Errorf("after the pod's end there are mounts left: %s", strings.Join(after.mounts, "\n"))
	}
	return err
}

// discovery offers a disk of the node's, which is mounted while it runs, to a claim.
func (d daemonSets) discovery(ctx context.Context, w io.Writer) error {
	if err := d.applyManifest(ctx, "controller/testdata/local-discovery.yaml"); err != nil {
		return err
	}
	if err := d.rolledOut(ctx, "podvol-local-discovery"); err != nil {
		return err
	}
	if _, err := d.node.shell(ctx, "mkdir -p /mnt/disks/one && mount -t tmpfs -o size=4m disk /mnt/disks/one"); err != nil {
		return err
	}
	within, cancel := context.WithTimeoutCause(ctx, 3*time.Minute, fmt.Errorf("no PersistentVolume within three minutes"))
	defer cancel()
	if err := eventually(within, func() (bool, error) {
		path, err := d.kubectl(ctx, nil, "get", "pv", "-o", "jsonpath={.items[*].spec.local.path}")
		return path == "/mnt/disks/one", err
	}); err != nil {
		return err
	}
	claim := object{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": object{"name": "disk"}, "spec": object{
		"storageClassName": "local", "accessModes": []string{"ReadWriteOnce"}, "resources": object{"requests": object{"storage": "1Mi"}}}}
	pod := object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": "writer"}, "spec": object{"restartPolicy": "Never",
		"containers": []object{{"name": "main", "image": shellImage, "imagePullPolicy": "Never", "command": []string{"sh", "-c", "echo written >/disk/file"},
			"volumeMounts": []object{{"name": "disk", "mountPath": "/disk"}}}},
		"volumes": []object{{"name": "disk", "persistentVolumeClaim": object{"claimName": "disk"}}}}}
	if err := d.apply(ctx, claim, pod); err != nil {
		return err
	}
	if _, err := d.kubectl(ctx, nil, "wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=3m", "pod/writer"); err != nil {
		return err
	}
	written, err := d.node.shell(ctx, "cat /mnt/disks/one/file")
	if err == nil && written != "written\n" {
		err = fmt.Errorf("on the disk is %q", written)
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(w, "local discovery in a container: a disk that was mounted later is a PersistentVolume, and a pod has written to it")
	return nil
}
