package podlife

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/retry"
)

// The annotations are the kubelet's: where a pod comes from, and of which static pod
// another one is the mirror.
const (
	SourceAnnotation = "kubernetes.io/config.source"
	HashAnnotation   = "kubernetes.io/config.hash"
	FromFile         = "file"
)

// A static pod is one that the API server does not know. It has a mirror there, by which
// users see it, and which is made again when it is deleted.

func isStatic(pod *v1.Pod) bool { return pod.Annotations[SourceAnnotation] == FromFile }

// mirrored returns the UID of the static pod that a pod is the mirror of.
func mirrored(pod *v1.Pod) (types.UID, bool) {
	hash, is := pod.Annotations[v1.MirrorPodAnnotationKey]
	return types.UID(hash), is
}

// mirrorSeen takes news of a mirror. It returns false for a pod that is none.
func (p *Pods) mirrorSeen(pod *v1.Pod) bool {
	uid, is := mirrored(pod)
	if !is {
		return false
	}
	if l, ok := p.life(uid); ok {
		l.set(func() {}) // which stores the status again where it is needed
	}
	return true
}

// RemoveMirrors deletes the mirrors among the pods of the API server whose static pods are
// no more.
func (p *Pods) RemoveMirrors(ctx context.Context, known []any) {
	for _, object := range known {
		pod := object.(*v1.Pod)
		uid, is := mirrored(pod)
		if _, lives := p.life(uid); !is || lives {
			continue
		}
		p.until(ctx, "the mirror of a pod that is no more is not deleted", func() error { return p.deleteMirror(ctx, pod) })
	}
}

func (p *Pods) deleteMirror(ctx context.Context, mirror *v1.Pod) error {
	options := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &mirror.UID}}
	err := p.API.CoreV1().Pods(mirror.Namespace).Delete(ctx, mirror.Name, options)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// storeMirror writes the status of a static pod into its mirror, and makes that where it
// is missing. It returns false where ctx has ended before.
func (l *life) storeMirror(ctx context.Context) bool {
	pause := retry.Pause{First: time.Second, Last: 30 * time.Second}
	for {
		err := l.mirror(ctx)
		switch {
		case err == nil:
			return true
		case ctx.Err() != nil:
			return false
		case apierrors.IsInvalid(err), errors.Is(err, errNameTaken):
			l.pods.Log.Warn("a static pod has no mirror", "pod", l.name, "error", err)
			return true
		}
		l.pods.Log.Warn("a static pod has no mirror yet", "pod", l.name, "error", err)
		select {
		case <-l.ending:
			return true
		default:
		}
		if !pause.Wait(ctx) {
			return false
		}
	}
}

var errNameTaken = errors.New("another pod has its name")

func (l *life) mirror(ctx context.Context) error {
	pods := l.pods.API.CoreV1().Pods(l.name.Namespace)
	has, err := pods.Get(ctx, l.name.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err == nil {
		uid, is := mirrored(has)
		switch {
		case !is:
			return errNameTaken
		case uid != l.uid || has.DeletionTimestamp != nil:
			if err := l.pods.deleteMirror(ctx, has); err != nil {
				return err
			}
			has = nil
		}
	} else {
		has = nil
	}
	select {
	case <-l.ending: // it goes
		return nil
	default:
	}
	if has == nil {
		wanted, err := l.newMirror(ctx)
		if err != nil {
			return err
		}
		if has, err = pods.Create(ctx, wanted, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	now := l.snapshot()
	now.UID = has.UID
	patch, err := statusPatch(now)
	if err != nil {
		return err
	}
	if old, err := statusPatch(has); err == nil && bytes.Equal(patch, old) {
		return nil
	}
	_, err = pods.Patch(ctx, l.name.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// newMirror is owned by the node's object, as the API server demands of a node.
func (l *life) newMirror(ctx context.Context) (*v1.Pod, error) {
	l.mu.Lock()
	mirror := &v1.Pod{ObjectMeta: *l.pod.ObjectMeta.DeepCopy(), Spec: *l.pod.Spec.DeepCopy()}
	l.mu.Unlock()
	node, err := l.pods.API.CoreV1().Nodes().Get(ctx, mirror.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("its node: %w", err)
	}
	mirror.UID, mirror.ResourceVersion = "", ""
	mirror.Annotations[v1.MirrorPodAnnotationKey] = string(l.uid)
	mirror.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: new(true)}}
	return mirror, nil
}

// deleteOwnMirror deletes the mirror of a static pod that has gone.
func (l *life) deleteOwnMirror(ctx context.Context) bool {
	return l.pods.until(ctx, "the mirror of a static pod is not deleted", func() error {
		has, err := l.pods.API.CoreV1().Pods(l.name.Namespace).Get(ctx, l.name.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if uid, is := mirrored(has); !is || uid != l.uid {
			return nil
		}
		return l.pods.deleteMirror(ctx, has)
	})
}
