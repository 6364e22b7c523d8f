package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// handover has a node change hands, from Kubernetes' kubelet to podvol's and back: first
// one of a cluster, then one that has no API server and runs static pods.
type handover struct {
	o    options
	node node
}

// takes are the flags with which podvol takes a node over, and can give it back.
func takes() []string { return []string{"--adopt", "--cgroup-driver=cgroupfs"} }

func (h handover) run(ctx context.Context, w io.Writer) error {
	if err := h.inCluster(ctx, w); err != nil {
		return fmt.Errorf("in the cluster: %w", err)
	}
	if err := h.alone(ctx, w); err != nil {
		return fmt.Errorf("without an API server: %w", err)
	}
	return nil
}

// inCluster hands over pods of the API server.
func (h handover) inCluster(ctx context.Context, w io.Writer) error {
	if err := h.apply(ctx, append(claims(h.node.name()), files("one")...)...); err != nil {
		return err
	}
	if err := h.addPod(ctx, "of-kubelet"); err != nil {
		return err
	}
	found, err := h.node.tell(ctx, order{Run: []string{base + "/programs/podvol", "fsck", "--root-dir", kubeletRoot}})
	if err == nil && found != "" {
		err = errors.New("it finds something")
	}
	if err != nil {
		return fmt.Errorf("podvol fsck beside the kubelet: %w\n%s", err, found)
	}
	fmt.Fprintln(w, "podvol fsck beside the kubelet finds nothing wrong")
	if err := h.change(ctx, w, "kubelet", "virtualkubelet", takes(), "two"); err != nil {
		return err
	}
	if err := h.addPod(ctx, "of-podvol"); err != nil {
		return err
	}
	if err := h.change(ctx, w, "virtualkubelet", "kubelet", nil, "three"); err != nil {
		return err
	}
	if err := h.change(ctx, w, "kubelet", "virtualkubelet", takes(), "four"); err != nil {
		return err
	}
	// One pod is deleted while no agent runs.
	if _, err := h.node.tell(ctx, order{Stop: true}); err != nil {
		return err
	}
	if _, err := h.kubectl(ctx, nil, "delete", "pod", "of-kubelet", "--wait=false"); err != nil {
		return err
	}
	if _, err := h.node.tell(ctx, order{Start: "kubelet"}); err != nil {
		return err
	}
	if _, err := h.kubectl(ctx, nil, "delete", "pod", "--all", "--timeout=3m"); err != nil {
		return err
	}
	if err := h.replace(ctx, "virtualkubelet", takes()); err != nil { // it removes its own files
		return err
	}
	if err := h.node.awaitNothingLeft(ctx, kubeletRoot); err != nil {
		return err
	}
	fmt.Fprintln(w, "the kubelet has ended pods of both: nothing of them is left")
	return nil
}

// change has the node change hands, and compares what runs and what is mounted before and
// after. The new agent is at work when it shows new contents in the pods' volumes, and has
// run a pod of its own.
func (h handover) change(ctx context.Context, w io.Writer, from, to string, flags []string, content string) error {
	before, err := h.node.look(ctx, kubeletRoot)
	if err != nil {
		return err
	}
	if err := h.replace(ctx, to, flags); err != nil {
		return err
	}
	if err := h.apply(ctx, files(content)...); err != nil {
		return err
	}
	if err := h.addPod(ctx, "probe"); err != nil {
		return err
	}
	if err := h.awaitContent(ctx, content); err != nil {
		return err
	}
	if _, err := h.kubectl(ctx, nil, "delete", "pod", "probe", "--timeout=2m"); err != nil {
		return err
	}
	after, err := h.node.look(ctx, kubeletRoot)
	if err != nil {
		return err
	}
	if err := before.same(after); err != nil {
		return fmt.Errorf("%s to %s: %w", from, to, err)
	}
	if err := h.noRestarts(ctx); err != nil {
		return fmt.Errorf("%s to %s: %w", from, to, err)
	}
	fmt.Fprintf(w, "%s to %s: %s go on, and see new contents\n", from, to, after)
	return nil
}

func (h handover) replace(ctx context.Context, to string, flags []string) error {
	if _, err := h.node.tell(ctx, order{Stop: true}); err != nil {
		return err
	}
	_, err := h.node.tell(ctx, order{Start: to, Flags: flags})
	return err
}

func (h handover) kubectl(ctx context.Context, content any, args ...string) (string, error) {
	cmd := inCluster(ctx, h.o, "kubectl", args...)
	if content != nil {
		sent, err := json.Marshal(content)
		if err != nil {
			return "", err
		}
		cmd.Stdin = strings.NewReader(string(sent))
	}
	return quietly(cmd)
}

func (h handover) apply(ctx context.Context, objects ...object) error {
	_, err := h.kubectl(ctx, object{"apiVersion": "v1", "kind": "List", "items": objects}, "apply", "-f", "-")
	return err
}

// claims are two volumes of the node's, and who claims them.
func claims(node string) []object {
	var all []object
	for name, source := range map[string]object{
		"host":  {"hostPath": object{"path": "/var/lib/volumes/host", "type": "DirectoryOrCreate"}},
		"local": {"local": object{"path": "/var/lib/volumes/local"}},
	} {
		claimed := object{"accessModes": []string{"ReadWriteOnce"}, "storageClassName": "", "volumeMode": "Filesystem"}
		pv := object{"capacity": object{"storage": "1Mi"}, "persistentVolumeReclaimPolicy": "Retain",
			"claimRef": object{"namespace": "default", "name": name},
			"nodeAffinity": object{"required": object{"nodeSelectorTerms": []object{{"matchExpressions": []object{
				{"key": "kubernetes.io/hostname", "operator": "In", "values": []string{node}}}}}}}}
		maps.Copy(pv, claimed)
		maps.Copy(pv, source)
		claim := object{"volumeName": name, "resources": object{"requests": object{"storage": "1Mi"}}}
		maps.Copy(claim, claimed)
		all = append(all, object{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": object{"name": name}, "spec": pv},
			object{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": object{"name": name}, "spec": claim})
	}
	return all
}

// files are what pods mount of the API server.
func files(content string) []object {
	data := object{"a": content, "b": "b"}
	return []object{
		{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "files"}, "data": data},
		{"apiVersion": "v1", "kind": "Secret", "metadata": object{"name": "files"}, "stringData": data},
	}
}

// script is what the containers run: each start is written into a volume, for each
// container.
const script = `echo start >>/disk/starts-$0; echo start >>/memory/starts-$0; trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done`

// twoContainers mount all volumes, parts of some, and write.
func twoContainers(volumes []object) object {
	mount := func(name, path, part string) object {
		m := object{"name": name, "mountPath": path}
		if part != "" {
			m["subPath"] = part
		}
		return m
	}
	container := func(name string) object {
		c := object{"name": name, "image": shellImage, "imagePullPolicy": "Never", "command": []string{"sh", "-c", script, name}}
		var mounts []object
		for _, v := range volumes {
			mounts = append(mounts, mount(v["name"].(string), "/"+v["name"].(string), ""))
			if v["name"] == "config" {
				mounts = append(mounts, mount("config", "/file", "b"))
			}
		}
		c["volumeMounts"] = append(mounts, mount("disk", "/part", "x/y"), mount("memory", "/part-of-memory", "x"))
		return c
	}
	return object{"terminationGracePeriodSeconds": 5, "containers": []object{container("first"), container("second")}, "volumes": volumes,
		"initContainers": []object{container("init")}}
}

// nodesVolumes need no API server: those of a static pod.
func nodesVolumes() []object {
	return []object{
		{"name": "disk", "emptyDir": object{}}, {"name": "memory", "emptyDir": object{"medium": "Memory", "sizeLimit": "1Mi"}},
		{"name": "host-path", "hostPath": object{"path": "/var/lib/volumes/path", "type": "DirectoryOrCreate"}},
		{"name": "about", "downwardAPI": object{"items": labels()}},
	}
}

func labels() []object {
	return []object{{"path": "labels", "fieldRef": object{"fieldPath": "metadata.labels"}}}
}

// addPod runs a pod on the node.
func (h handover) addPod(ctx context.Context, name string) error {
	spec := twoContainers(append(nodesVolumes(),
		object{"name": "config", "configMap": object{"name": "files"}}, object{"name": "secret", "secret": object{"secretName": "files"}},
		object{"name": "projected", "projected": object{"sources": []object{
			{"configMap": object{"name": "files"}}, {"downwardAPI": object{"items": labels()}}, {"serviceAccountToken": object{"path": "token"}}}}},
		object{"name": "claimed-host", "persistentVolumeClaim": object{"claimName": "host"}},
		object{"name": "claimed-local", "persistentVolumeClaim": object{"claimName": "local"}},
	))
	init := spec["initContainers"].([]object)[0]
	init["command"] = []string{"sh", "-c", "echo first >/disk/init"}
	spec["nodeName"] = h.node.name()
	if _, err := h.node.shell(ctx, "mkdir -p /var/lib/volumes/local"); err != nil {
		return err
	}
	if err := h.apply(ctx, object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": name, "labels": object{"app": name}}, "spec": spec}); err != nil {
		return err
	}
	_, err := h.kubectl(ctx, nil, "wait", "--for=condition=Ready", "--timeout=3m", "pod/"+name)
	return err
}

// awaitContent waits until all pods see new contents of config maps and secrets.
func (h handover) awaitContent(ctx context.Context, content string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 4*time.Minute, fmt.Errorf("pods see %q not within four minutes", content))
	defer cancel()
	return eventually(ctx, func() (bool, error) {
		out, err := h.node.shell(ctx, `cd /var/lib/kubelet/pods && for f in */volumes/kubernetes.io~configmap/config/a */volumes/kubernetes.io~secret/secret/a */volumes/kubernetes.io~projected/projected/a; do cat "$f"; echo; done`)
		return err == nil && strings.TrimSpace(strings.ReplaceAll(out, content, "")) == "", err
	})
}

// noRestarts asks the API server and the volumes whether any container was started twice.
func (h handover) noRestarts(ctx context.Context) error {
	counts, err := h.kubectl(ctx, nil, "get", "pods", "-o", "jsonpath={.items[*].status.containerStatuses[*].restartCount}")
	if err != nil {
		return err
	}
	if strings.Trim(counts, "0 ") != "" {
		return fmt.Errorf("containers have been restarted: %s", counts)
	}
	return h.node.oneStartEach(ctx, kubeletRoot)
}

// oneStartEach reads what the containers have written into their volumes.
func (n node) oneStartEach(ctx context.Context, root string) error {
	starts, err := n.shell(ctx, `cd `+root+`/pods && for dir in */volumes/kubernetes.io~empty-dir/*; do for c in first second; do echo "$dir/$c $(cat "$dir/starts-$c")"; done; done`)
	if err != nil {
		return err
	}
	for line := range strings.Lines(starts) {
		if !strings.HasSuffix(line, " start\n") {
			return fmt.Errorf("not started just once: %s", line)
		}
	}
	return nil
}

// view is what runs on a node, and what is mounted for it: the mounts below the root
// directory by their IDs, and all mounts of each container.
type view struct {
	mounts, tasks []string
	inside        map[string]string
}

// String counts.
func (v view) String() string {
	return fmt.Sprintf("%d containers and sandboxes with %d mounts of volumes", len(v.tasks), len(v.mounts))
}

const lookScript = `
awk -v r="$1/" 'index($5, r) == 1 { print "mount " $1 " " $5 }' /proc/self/mountinfo
ctr -n k8s.io tasks ls | awk 'NR > 1 { print $1, $2, $3 }' | while read -r id pid state; do
  echo "task $id $pid $state"
  awk -v id="$id" '{ print "in " id " " $1 " " $5 }' /proc/$pid/mountinfo
done
`

func (n node) look(ctx context.Context, root string) (view, error) {
	out, err := n.tell(ctx, order{Run: []string{"sh", "-c", lookScript, "look", root}})
	v := view{inside: make(map[string]string)}
	for line := range strings.Lines(out) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch kind {
		case "mount":
			v.mounts = append(v.mounts, rest)
		case "task":
			v.tasks = append(v.tasks, rest)
		case "in":
			id, mounted, _ := strings.Cut(rest, " ")
			v.inside[id] += mounted + "\n"
		}
	}
	slices.Sort(v.mounts)
	slices.Sort(v.tasks)
	return v, err
}

// same fails where anything was started, ended, mounted or unmounted.
func (v view) same(after view) error {
	for _, kind := range []struct {
		what          string
		before, after []string
	}{{"containers", v.tasks, after.tasks}, {"mounts", v.mounts, after.mounts}} {
		gone := slices.DeleteFunc(slices.Clone(kind.before), func(s string) bool { return slices.Contains(kind.after, s) })
		added := slices.DeleteFunc(slices.Clone(kind.after), func(s string) bool { return slices.Contains(kind.before, s) })
		if len(gone)+len(added) > 0 {
			return fmt.Errorf("%s: gone are\n%s\nand new are\n%s", kind.what, strings.Join(gone, "\n"), strings.Join(added, "\n"))
		}
	}
	for id, mounted := range v.inside {
		if after.inside[id] != mounted {
			return fmt.Errorf("in container %s these were mounted:\n%sand are now:\n%s", id, mounted, after.inside[id])
		}
	}
	return nil
}

// The second part's directories are others than the cluster's.
const (
	aloneRoot   = "/var/lib/alone"
	manifests   = "/var/lib/static"
	noCluster   = base + "/cluster/nowhere.kubeconfig"
	alonePodvol = "/var/lib/podvol-alone"
)

// standalone are the flags of a kubelet without API server.
func standalone() []string {
	return []string{"--kubeconfig=", "--root-dir=" + aloneRoot, "--pod-manifest-path=" + manifests, "--sync-frequency=5s", "--file-check-frequency=1s"}
}

// alonePods are those of podvol's node: its API server does not answer.
func alonePods() []string {
	return append(takes(), "--kubeconfig="+noCluster, "--root-dir="+aloneRoot, "--pod-manifest-path="+manifests, "--dir="+alonePodvol)
}

// alone hands over static pods, with another root directory.
func (h handover) alone(ctx context.Context, w io.Writer) error {
	if _, err := h.node.tell(ctx, order{Stop: true}); err != nil {
		return err
	}
	nowhere := object{"apiVersion": "v1", "kind": "Config", "current-context": "x",
		"clusters": []object{{"name": "x", "cluster": object{"server": "https://127.0.0.1:1"}}}, "users": []object{{"name": "x"}},
		"contexts": []object{{"name": "x", "context": object{"cluster": "x", "user": "x"}}}}
	if err := h.node.write(ctx, noCluster, nowhere); err != nil {
		return err
	}
	if _, err := h.node.shell(ctx, "mkdir -p "+manifests); err != nil {
		return err
	}
	if err := h.node.write(ctx, manifests+"/web.json", staticPod("web")); err != nil {
		return err
	}
	if _, err := h.node.tell(ctx, order{Start: "kubelet", Flags: standalone()}); err != nil {
		return err
	}
	if err := h.node.awaitStatic(ctx, "web", true); err != nil {
		return err
	}
	for _, step := range []struct {
		from, to string
		flags    []string
	}{{"kubelet", "virtualkubelet", alonePods()}, {"virtualkubelet", "kubelet", standalone()}, {"kubelet", "virtualkubelet", alonePods()}} {
		if err := h.changeAlone(ctx, step.to, step.flags); err != nil {
			return fmt.Errorf("%s to %s: %w", step.from, step.to, err)
		}
		after, err := h.node.look(ctx, aloneRoot)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s to %s, static pods without an API server: %s go on\n", step.from, step.to, after)
	}
	if _, err := h.node.shell(ctx, "rm "+manifests+"/*"); err != nil {
		return err
	}
	within, cancel := context.WithTimeoutCause(ctx, leftWithin, errors.New("podvol's files of static pods do not go"))
	defer cancel()
	if err := eventually(within, func() (bool, error) {
		pods, err := h.podvolsPods(ctx)
		return len(pods) == 0, err
	}); err != nil {
		return err
	}
	// The kubelet removes what it has kept of its own probe. Podvol does not: without the
	// API server it does not know which pods there are.
	if err := h.replace(ctx, "kubelet", standalone()); err != nil {
		return err
	}
	if err := h.node.awaitNothingLeft(ctx, aloneRoot); err != nil {
		return err
	}
	fmt.Fprintln(w, "podvol has ended a pod of the kubelet's, whose manifest was removed: nothing of it is left")
	return nil
}

// changeAlone has the node change hands. The new agent is at work when it has run and ended
// a pod of its own.
func (h handover) changeAlone(ctx context.Context, to string, flags []string) error {
	before, err := h.node.look(ctx, aloneRoot)
	if err != nil {
		return err
	}
	if err := h.replace(ctx, to, flags); err != nil {
		return err
	}
	probe := manifests + "/probe.json"
	if err := h.node.write(ctx, probe, staticPod("probe")); err != nil {
		return err
	}
	if err := h.node.awaitStatic(ctx, "probe", true); err != nil {
		return err
	}
	if _, err := h.node.shell(ctx, "rm "+probe); err != nil {
		return err
	}
	if err := h.node.awaitStatic(ctx, "probe", false); err != nil {
		return err
	}
	settled, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var unlike error
	err = eventually(settled, func() (bool, error) {
		after, err := h.node.look(ctx, aloneRoot)
		if unlike = before.same(after); unlike != nil || err != nil {
			return false, err
		}
		files, err := h.podvolsPods(ctx)
		return len(files) <= 1, err // the probe's go after its containers
	})
	if err != nil {
		return errors.Join(unlike, err)
	}
	return h.node.oneStartEach(ctx, aloneRoot)
}

// podvolsPods are the pods of which podvol has files beside the root directory.
func (h handover) podvolsPods(ctx context.Context) ([]string, error) {
	pods, err := h.node.shell(ctx, "mkdir -p "+alonePodvol+"/containers && ls "+alonePodvol+"/containers")
	return strings.Fields(pods), err
}

func staticPod(name string) object {
	return object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": name, "namespace": "default", "labels": object{"app": name}},
		"spec": twoContainersOnce(nodesVolumes())}
}

// twoContainersOnce has no init container.
func twoContainersOnce(volumes []object) object {
	spec := twoContainers(volumes)
	delete(spec, "initContainers")
	return spec
}

// write writes a file of the node's as a whole.
func (n node) write(ctx context.Context, path string, content any) error {
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	_, err = n.tell(ctx, order{Run: []string{"sh", "-c", `printf %s "$2" >"$1.new" && mv "$1.new" "$1"`, "write", path, string(text)}})
	return err
}

// awaitStatic waits until both containers of a static pod run, or none of it is left.
func (n node) awaitStatic(ctx context.Context, name string, runs bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 3*time.Minute, fmt.Errorf("static pod %s: not within three minutes", name))
	defer cancel()
	pod := regexp.MustCompile(`(?m)^` + name + `-` + n.name() + ` (RUNNING)?`)
	return eventually(ctx, func() (bool, error) {
		out, err := n.shell(ctx, `ctr -n k8s.io tasks ls | awk 'NR > 1 { print $1, $3 }' | while read -r id state; do echo "$(ctr -n k8s.io containers info "$id" | sed -n 's/.*"io.kubernetes.pod.name": "\(.*\)".*/\1/p' | head -n1) $state"; done`)
		found := len(pod.FindAllString(out, -1))
		return runs && found == 3 || !runs && found == 0, err // with the sandbox
	})
}
