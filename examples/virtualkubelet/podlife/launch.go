package podlife

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containerenv"
	"github.com/podvol/podvol/volume/objects"
)

// configError is the reason of a container whose manifest cannot be followed yet.
const configError = "CreateContainerConfigError"

// launch asks podvol anew each time: a sub-path may lead to something else by now.
func (c *container) launch(pod *v1.Pod) (Container, error) {
	if c.life.unfit != nil {
		return nil, &StartError{Reason: configError, Err: fmt.Errorf("the pod was taken over, and is none that this node can start: %w", c.life.unfit)}
	}
	volumes, runtime, from := c.life.pods.volumes, c.life.pods.Runtime, c.life.pods.env
	services, err := c.life.services(c.wanted, pod)
	if err != nil {
		return nil, &StartError{Reason: configError, Err: fmt.Errorf("the services of the pod are not known: %w", err)}
	}
	from.Services = services
	env, err := containerenv.Resolve(c.wanted, pod, c.spec, from)
	if err != nil {
		return nil, &StartError{Reason: configError, Err: err}
	}
	options, err := runtime.MountOptions(c.wanted, pod)
	if err != nil {
		return nil, &StartError{Reason: configError, Err: err}
	}
	options.Env = env.Map()
	mounts, devices, err := volumes.ContainerMounts(c.wanted, pod.UID, c.spec.Name, options)
	if err != nil {
		return nil, &StartError{Reason: configError, Err: c.mountError(err)}
	}
	images, err := c.life.pods.ImageRefs(pod.UID)
	if err != nil {
		return nil, &StartError{Reason: configError, Err: err}
	}
	c.set(func(s *v1.ContainerStatus) { s.VolumeMounts = mountStatuses(c.spec, mounts, images) })
	return runtime.Start(c.wanted, Launch{Pod: pod, Spec: c.spec, Attempt: c.attempt(), Env: env, Mounts: mounts, Devices: devices,
		Groups: volumes.ExtraSupplementalGroups(pod.UID), Target: c.life.idOf(c.target),
		PullSecrets: func(ctx context.Context) []*v1.Secret { return c.life.pods.pullSecrets(ctx, pod) },
		Tell:        func(eventType, reason, message string) { c.life.pods.Events.Event(pod, eventType, reason, message) }})
}

// servicesWait is how long the start of a container waits for the API server.
const servicesWait = 5 * time.Second

// services are those that a container is told of. Where the API server does not answer they
// are the last ones that the pod was told of, so that what has run is started again. A static
// pod does also without any: it may be the API server itself. Another pod waits, as with a
// kubelet that has not read the services yet.
func (l *life) services(ctx context.Context, pod *v1.Pod) ([]v1.Service, error) {
	asking, cancel := context.WithTimeout(ctx, servicesWait)
	defer cancel()
	services, err := l.pods.servicesFor(asking, pod)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.lastServices, l.hasServices = services, true
		return services, nil
	}
	if ctx.Err() != nil || !l.hasServices && !l.static {
		return nil, err
	}
	l.pods.Log.Warn("a pod is told of the services that were known before", "pod", l.name, "error", err)
	return l.lastServices, nil
}

// servicesFor lists the services whose addresses a pod is told. The list comes from the API
// server's cache, and costs one request for each start of a container; a watch would tell
// every node of every change of every service.
func (p *Pods) servicesFor(ctx context.Context, pod *v1.Pod) ([]v1.Service, error) {
	var all []v1.Service
	if pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks {
		list, err := p.API.CoreV1().Services(pod.Namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		switch {
		case apierrors.IsNotFound(err): // this API has no services at all
		case err != nil:
			return nil, err
		default:
			all = list.Items
		}
	}
	if slices.ContainsFunc(all, func(s v1.Service) bool { return s.Namespace == metav1.NamespaceDefault && s.Name == "kubernetes" }) {
		return all, nil
	}
	own, err := p.API.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{ResourceVersion: "0"})
	switch {
	case apierrors.IsNotFound(err):
		return all, nil
	case err != nil:
		return nil, err
	}
	return append(all, *own), nil
}

// pullSecrets reads a pod's imagePullSecrets. One that is missing is told, and the image is
// pulled without it.
func (p *Pods) pullSecrets(ctx context.Context, pod *v1.Pod) (all []*v1.Secret) {
	var missing []string
	for _, ref := range pod.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		if p.objects == nil {
			missing = append(missing, ref.Name)
			continue
		}
		secret, err := objects.Get[*v1.Secret](ctx, p.objects, volume.NewObjectRef("Secret", pod.Namespace, ref.Name))
		if err != nil {
			missing = append(missing, ref.Name)
			continue
		}
		all = append(all, secret)
	}
	if len(missing) > 0 {
		p.Events.Eventf(pod, v1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
			"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(missing, ", "))
	}
	return all
}

// mountError names the subPath as the field of the manifest that an error may come from:
// with all volumes mounted there is little else that can fail.
func (c *container) mountError(err error) error {
	if slices.ContainsFunc(c.spec.VolumeMounts, func(m v1.VolumeMount) bool { return m.SubPath != "" || m.SubPathExpr != "" }) {
		return fmt.Errorf("the mounts cannot be made, with a subPath among them: %w", err)
	}
	return err
}

// notStarted reports a failed start, and whether the restart policy takes it for a run.
func (c *container) notStarted(pod *v1.Pod, err error) (run bool) {
	c.life.pods.Events.Eventf(pod, v1.EventTypeWarning, "Failed", "Error: container %s: %v", c.spec.Name, err)
	reason := "RunContainerError"
	own, ok := errors.AsType[*StartError](err)
	if ok {
		reason = own.Reason
	}
	if !ok || own.Code == 0 {
		c.set(func(s *v1.ContainerStatus) { hasFailed(s, reason, err) })
		c.await(err)
		return false
	}
	c.set(func(s *v1.ContainerStatus) {
		countRestart(s)
		hasEnded(s, Ended{Code: own.Code, Reason: reason, Message: err.Error(), Started: time.Now(), Finished: time.Now()})
	})
	return true
}

// awaited is the object that a container's environment lacks.
type awaited struct {
	ref  volume.ObjectRef
	stop func() // ends the watch; nil: nothing is lacking
}

// forgetNews forgets the news that the next start will see for itself.
func (c *container) forgetNews() {
	select {
	case <-c.news:
	default:
	}
}

// await has the container started again when the object changes that its environment
// lacks. The watch stays for the next attempt, since a new one tells of the first state
// too. What its volumes lack is told by volumeChanged.
func (c *container) await(err error) {
	missing, ok := errors.AsType[*containerenv.MissingError](err)
	if !ok || c.life.pods.objects == nil {
		c.stopAwaiting()
		return
	}
	if c.awaited.stop != nil && c.awaited.ref == missing.Ref {
		return
	}
	c.stopAwaiting()
	c.awaited = awaited{missing.Ref, c.life.pods.objects.Watch(missing.Ref, func(volume.ObjectRef) { c.hearNews() })}
}

func (c *container) stopAwaiting() {
	if c.awaited.stop != nil {
		c.awaited.stop()
	}
	c.awaited = awaited{}
}

func (c *container) hearNews() {
	select {
	case c.news <- struct{}{}:
	default:
	}
}

// hearNews tells those containers that could not be started because of their volumes, as the
// key that a subPath names was missing. l.mu is held.
func (l *life) hearNews() {
	for _, c := range l.all {
		if w := c.status.State.Waiting; w != nil && w.Reason == configError {
			c.hearNews()
		}
	}
}
