package criruntime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/dump"

	"github.com/podvol/podvol/examples/virtualkubelet/podlife"
)

// What a kubelet's sandboxes and containers have, and what a kubelet looks for when it
// takes over those of this package.

// isOwn reports whether a sandbox or container of one of this node's pods is this node's.
// A kubelet's have no label with a node's name.
func (r *Runtime) isOwn(labels map[string]string) bool {
	node, has := labels[nodeLabel]
	return !has || node == r.Node
}

// isListed reports whether a sandbox counts among this node's where it is not known whose
// pod it is.
func (r *Runtime) isListed(labels map[string]string) bool {
	_, has := labels[nodeLabel]
	return r.isOwn(labels) && (has || r.Adopt && labels[podUIDLabel] != "")
}

// StaticPods returns the UIDs of the static pods that a kubelet has left running. They are
// made from manifests in a way of the kubelet's own.
func (r *Runtime) StaticPods(ctx context.Context) (map[types.NamespacedName]types.UID, error) {
	answer, err := r.service.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	found := make(map[types.NamespacedName]types.UID)
	for _, s := range answer.Items {
		if _, has := s.Labels[nodeLabel]; has || s.State != cri.PodSandboxState_SANDBOX_READY || s.Annotations[podlife.SourceAnnotation] != podlife.FromFile {
			continue
		}
		found[types.NamespacedName{Namespace: s.GetMetadata().GetNamespace(), Name: s.GetMetadata().GetName()}] = types.UID(s.GetMetadata().GetUid())
	}
	return found, nil
}

// containerAnnotations are a kubelet's, of v1.31 or later. Without its own hash of a
// container it starts the container anew. From the others it knows how to end it, and
// where its last words are.
func containerAnnotations(l podlife.Launch) map[string]string {
	const prefix, ofPod = "io.kubernetes.container.", "io.kubernetes.pod."
	c := l.Spec
	all := map[string]string{
		prefix + "hash":                     strconv.FormatUint(uint64(kubeletHash(c)), 16),
		prefix + "restartCount":             strconv.Itoa(int(l.Attempt)),
		prefix + "terminationMessagePath":   messagePath(c),
		prefix + "terminationMessagePolicy": string(c.TerminationMessagePolicy),
	}
	if seconds := l.Pod.Spec.TerminationGracePeriodSeconds; seconds != nil {
		all[ofPod+"terminationGracePeriod"] = strconv.FormatInt(*seconds, 10)
	}
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil {
		text, _ := json.Marshal(c.Lifecycle.PreStop) // which can always be encoded
		all[prefix+"preStopHandler"] = string(text)
	}
	if len(c.Ports) > 0 {
		text, _ := json.Marshal(c.Ports)
		all[prefix+"ports"] = string(text)
	}
	return all
}

// kubeletHash is by what a kubelet knows that a container is the one of the spec.
func kubeletHash(c *v1.Container) uint32 {
	text, _ := json.Marshal(map[string]string{"image": c.Image, "name": c.Name})
	hash := fnv.New32a()
	hash.Write([]byte(dump.ForHash(text)))
	return hash.Sum32()
}

// The cgroup drivers of a kubelet.
const (
	cgroupfs = "cgroupfs"
	systemd  = "systemd"
)

func checkCgroupDriver(driver string) error {
	switch driver {
	case "", cgroupfs, systemd:
		return nil
	}
	return fmt.Errorf("there is no cgroup driver %q, but %s and %s", driver, cgroupfs, systemd)
}

// cgroupParent is the kubelet's cgroup of a pod. A kubelet ends a running pod that has none.
func (r *Runtime) cgroupParent(pod *v1.Pod) string {
	class := strings.ToLower(string(podlife.QOSClass(pod)))
	if podlife.QOSClass(pod) == v1.PodQOSGuaranteed {
		class = ""
	}
	switch r.CgroupDriver {
	case cgroupfs:
		return path.Join("/kubepods", class, "pod"+string(pod.UID))
	case systemd:
		parent, slice := "kubepods", "/kubepods.slice"
		for _, part := range []string{class, "pod" + strings.ReplaceAll(string(pod.UID), "-", "_")} {
			if part != "" {
				parent += "-" + part
				slice += "/" + parent + ".slice"
			}
		}
		return slice
	}
	return "" // the runtime's own
}

// Where a kubelet keeps what its containers print.
const (
	kubeletLogs  = "/var/log/pods"
	kubeletLinks = "/var/log/containers"
)

// kubeletLog returns the log's path below kubeletLogs of a run that a kubelet has started;
// empty: there is none.
func kubeletLog(pod types.UID, container string, attempt int32) string {
	dirs, _ := entriesWith(kubeletLogs, "_"+string(pod))
	for _, dir := range dirs {
		log := filepath.Join(dir, logPath(container, attempt))
		if _, err := os.Lstat(log); err == nil {
			return filepath.Join(filepath.Base(dir), logPath(container, attempt))
		}
	}
	return ""
}

// entriesWith are the paths of what is in a directory and has a name that ends so.
func entriesWith(dir, suffix string) ([]string, error) {
	all, err := entriesOf(dir)
	return slices.DeleteFunc(all, func(file string) bool { return !strings.HasSuffix(file, suffix) }), err
}

// removeKubelets removes what a kubelet, or the runtime for it, has left of a pod beside
// its volumes: logs, its hosts file, last words and cgroups. Containers are the pod's.
func (r *Runtime) removeKubelets(pod types.UID, containers []*cri.Container) error {
	logs, all := entriesWith(kubeletLogs, "_"+string(pod))
	links, err := entriesOf(kubeletLinks)
	all = errors.Join(all, err)
	for _, link := range links {
		if slices.ContainsFunc(containers, func(c *cri.Container) bool { return strings.HasSuffix(link, "-"+c.Id+".log") }) {
			all = errors.Join(all, removeLevels(link, 0))
		}
	}
	for _, dir := range logs {
		all = errors.Join(all, removeLevels(dir, 2))
	}
	if r.RootDir != "" {
		dir := filepath.Join(r.RootDir, "pods", string(pod))
		all = errors.Join(all, removeLevels(filepath.Join(dir, "etc-hosts"), 0), removeLevels(r.idsFile(pod), 0), removeLevels(filepath.Join(dir, "containers"), 2))
		for _, empty := range []string{"volumes", "plugins", "volume-subpaths"} {
			inner, _ := entriesOf(filepath.Join(dir, empty))
			for _, path := range append(inner, filepath.Join(dir, empty)) {
				_ = os.Remove(path) // the volume manager's, while anything is in it
			}
		}
		_ = os.Remove(dir) // likewise
	}
	if r.CgroupDriver == cgroupfs { // systemd removes its empty slices
		all = errors.Join(all, removeCgroups(cgroups, pod))
	}
	return all
}

// cgroups is where the hierarchies of cgroups are mounted: one, or several below it.
const cgroups = "/sys/fs/cgroup"

// removeCgroups removes those of a pod, with those of its containers that the runtime has
// left, as runc does on a busy machine. They have no processes any more.
func removeCgroups(mounted string, pod types.UID) (err error) {
	for _, hierarchy := range []string{mounted, mounted + "/*"} {
		for _, class := range []string{"", "burstable", "besteffort"} {
			found, _ := filepath.Glob(filepath.Join(hierarchy, "kubepods", class, "pod"+string(pod)))
			for _, dir := range found {
				inner, _ := os.ReadDir(dir)
				for _, container := range inner {
					if container.IsDir() {
						_ = os.Remove(filepath.Join(dir, container.Name())) // else that of the pod cannot be removed, and says so
					}
				}
				if gone := os.Remove(dir); !errors.Is(gone, fs.ErrNotExist) {
					err = errors.Join(err, gone)
				}
			}
		}
	}
	return err
}
