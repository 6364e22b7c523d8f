package main

import (
	v1 "k8s.io/api/core/v1"
	corev1informers "k8s.io/client-go/informers/core/v1"
	corev1listers "k8s.io/client-go/listers/core/v1"
)

// copying hands out copies of pods. virtual-kubelet v1.12 writes into what its
// lister returns when a provider refuses a pod, unless it resolves environments
// itself; what is in the informer belongs to all who share it.
type copying struct{ corev1informers.PodInformer }

func (c copying) Lister() corev1listers.PodLister { return copyingLister{c.PodInformer.Lister()} }

type copyingLister struct{ corev1listers.PodLister }

func (l copyingLister) Pods(namespace string) corev1listers.PodNamespaceLister {
	return copyingNamespace{l.PodLister.Pods(namespace)}
}

type copyingNamespace struct {
	corev1listers.PodNamespaceLister
}

func (n copyingNamespace) Get(name string) (*v1.Pod, error) {
	pod, err := n.PodNamespaceLister.Get(name)
	if err != nil {
		return nil, err
	}
	return pod.DeepCopy(), nil
}
