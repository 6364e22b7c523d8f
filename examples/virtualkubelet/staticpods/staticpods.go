// Package staticpods runs the pods of a directory of manifests beside those of the API
// server, as a kubelet does. A pod's name ends with the node's, and its UID is made of its
// manifest: a changed manifest is another pod.
//
// The directory is read with the care of volume/nodeagent/manifestdir: a pod whose file
// cannot be read, or whose directory is empty or missing all at once, goes on.
package staticpods

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/virtualkubelet/podlife"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/nodeagent/manifestdir"
)

// Config says which directory, and whose pods. All fields but Check and Running are required.
type Config struct {
	// Dir is the directory of manifests. KnownFile remembers over restarts which pods it had,
	// and AdoptedFile which ones a kubelet had started.
	Dir, KnownFile, AdoptedFile string
	// Running are the UIDs of static pods that a kubelet has left running. A manifest of
	// such a name is taken for that pod's.
	Running  map[types.NamespacedName]types.UID
	NodeName string
	// Pods run them.
	Pods interface {
		Put(*v1.Pod)
		Gone(*v1.Pod)
	}
	Log *slog.Logger
}

// Follower follows a directory.
type Follower struct {
	config   Config
	watch    *manifestdir.Watch
	dir      *manifestdir.Directory
	runs     map[volume.ObjectRef]*v1.Pod
	adopted  *adopted
	complete chan struct{}
}

// New watches the directory, and fails where it or AdoptedFile cannot be read. Run must
// follow.
func New(c Config) (*Follower, error) {
	adopted, err := readAdopted(c.AdoptedFile, c.Running)
	if err != nil {
		return nil, err
	}
	watch, err := manifestdir.NewWatch(c.Dir)
	if err != nil {
		return nil, err
	}
	f := &Follower{config: c, watch: watch, runs: make(map[volume.ObjectRef]*v1.Pod), adopted: adopted, complete: make(chan struct{})}
	f.dir = manifestdir.New(manifestdir.Config{Dir: c.Dir, KnownFile: c.KnownFile, NodeName: c.NodeName,
		Notice: func(sentence string) { c.Log.Warn(sentence) }})
	return f, nil
}

// Complete is closed once all pods of the directory have been put: from now on a pod that
// was not is no pod of it.
func (f *Follower) Complete() <-chan struct{} { return f.complete }

// Run follows the directory until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	defer f.watch.Close()
	for {
		again := f.dir.Scan()
		f.apply()
		var due <-chan time.Time
		if again > 0 {
			timer := time.NewTimer(again)
			defer timer.Stop()
			due = timer.C
		}
		select {
		case <-due:
		case <-f.watch.Changed():
		case <-ctx.Done():
			return
		}
	}
}

// apply puts the wanted pods, and ends the others where they were removed for certain.
func (f *Follower) apply() {
	wanted := f.dir.Wanted().Pods
	for ref, pod := range wanted {
		static := f.static(pod)
		if old := f.runs[ref]; old != nil && old.UID != static.UID {
			f.config.Pods.Gone(old)
		}
		f.runs[ref] = static
		f.config.Pods.Put(static)
	}
	if !f.dir.Complete() {
		return
	}
	for ref, pod := range f.runs {
		if wanted[ref] == nil {
			f.config.Pods.Gone(pod)
			delete(f.runs, ref)
		}
	}
	select {
	case <-f.complete:
	default:
		close(f.complete)
	}
}

// static is the pod of a manifest as this node runs it.
func (f *Follower) static(manifest *v1.Pod) *v1.Pod {
	pod := manifest.DeepCopy()
	pod.Status = v1.PodStatus{}
	pod.UID, pod.ResourceVersion = "", ""
	read := pod.CreationTimestamp // by this agent, so that it is no part of which pod it is
	pod.CreationTimestamp = metav1.Time{}
	pod.Name += "-" + f.config.NodeName
	pod.Spec.NodeName = f.config.NodeName
	text, err := json.Marshal(pod)
	if err != nil {
		f.config.Log.Error("a static pod has no hash", "pod", pod.Name, "error", err) // a pod can always be encoded
	}
	sum := sha256.Sum256(text)
	pod.CreationTimestamp = read
	name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	if pod.UID, err = f.adopted.uid(name, types.UID(hex.EncodeToString(sum[:16]))); err != nil {
		f.config.Log.Error("which static pod a kubelet has started is not remembered", "pod", name, "error", err)
	}
	if pod.Annotations == nil {
		pod.Annotations = make(map[string]string)
	}
	pod.Annotations[podlife.SourceAnnotation] = podlife.FromFile
	pod.Annotations[podlife.HashAnnotation] = string(pod.UID)
	return pod
}
