// Package declared keeps pods as they were declared, in little memory while nothing is done
// for them: a node has each of its pods as long as it runs, and reads it when a volume is set
// up.
package declared

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pod is a copy of a declared pod; the zero value: none was declared. It is for one goroutine
// at a time. Its pods are never changed.
type Pod struct {
	pod *v1.Pod
	// packed is the pod in the API's protobuf form, which lacks its type; nil: it is not packed.
	packed []byte
	kind   metav1.TypeMeta
}

// Of copies a pod.
func Of(pod *v1.Pod) Pod { return Pod{pod: pod.DeepCopy()} }

// IsSet reports whether there is a pod.
func (p *Pod) IsSet() bool { return p.pod != nil || p.packed != nil }

// Get returns the pod, which the caller does not change; nil: there is none. Of a packed pod it
// is a new one each time.
func (p *Pod) Get() *v1.Pod {
	if p.packed == nil {
		return p.pod
	}
	pod := new(v1.Pod)
	if err := pod.Unmarshal(p.packed); err != nil {
		panic(fmt.Sprintf("a pod that was packed in this process cannot be unpacked: %v", err))
	}
	pod.TypeMeta = p.kind
	return pod
}

// Pack has the pod take up less memory: about a tenth. Get takes longer then.
func (p *Pod) Pack() {
	if p.pod == nil {
		return
	}
	if packed, err := p.pod.Marshal(); err == nil && len(packed) > 0 {
		p.packed, p.kind, p.pod = packed, p.pod.TypeMeta, nil
	}
}
