package image

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/image/internal/oci"
	"github.com/podvol/podvol/volume/plugins/image/internal/registry"
	"github.com/podvol/podvol/volume/plugins/image/internal/store"
)

// puller is the Runtime of nodes without one.
type puller struct{ *Plugin }

// pull finds or pulls the image of one volume.
type pull struct {
	*Plugin
	Request
	ref oci.Reference
}

func (p puller) PullImage(ctx context.Context, request Request) (dir, ref string, err error) {
	if dir, ref, err = p.use(ctx, request); err != nil {
		if kept := p.release(context.WithoutCancel(ctx), request.Pod.UID, request.Volume); kept != nil {
			return "", "", errors.Join(err, kept)
		}
	}
	return dir, ref, err
}

// release ends the use of an image, and removes what is over the budget. What is too recent
// for that is left to Run.
func (p puller) release(ctx context.Context, podUID types.UID, name string) error {
	if err := p.store().Release(ctx, string(podUID), name); err != nil {
		return err
	}
	if !p.collect(ctx).IsZero() {
		select {
		case p.unused <- struct{}{}:
		default: // Run is to look already
		}
	}
	return nil
}

// use pulls the image, and records its use before anything can remove it.
func (p puller) use(ctx context.Context, request Request) (dir, ref string, err error) {
	parsed, err := parse(request.Reference)
	if err != nil {
		return "", "", err
	}
	unlock, err := p.store().Lock(ctx)
	if err != nil {
		return "", "", err
	}
	defer unlock()
	image, err := (&pull{p.Plugin, request, parsed}).image(ctx)
	if err != nil {
		return "", "", err
	}
	ref = parsed.At(image.Digest).String()
	p.attempts.note(attemptKey{request.Pod.UID, parsed.String()}, attempt{digest: image.Digest})
	return p.store().ImageDir(image.Digest), ref, p.store().Use(image, ref, string(request.Pod.UID), request.Volume)
}

func (p puller) ReleaseImage(ctx context.Context, podUID types.UID, name string) error {
	p.attempts.forget(podUID)
	return p.release(ctx, podUID, name)
}

// platform is this node's.
func platform() oci.Platform {
	on := oci.Platform{OS: runtime.GOOS, Architecture: runtime.GOARCH}
	if on.Architecture == "arm" {
		on.Variant = "v7"
	}
	return on
}

// image returns the image, complete on this node, by the pull policy.
func (p *pull) image(ctx context.Context) (store.Image, error) {
	last := p.attempts.last(attemptKey{p.Pod.UID, p.ref.String()})
	if last.digest != "" { // another volume of the pod has it
		if image, has, err := p.store().Find(p.ref.At(last.digest)); err != nil || has {
			return image, err
		}
	}
	if p.PullPolicy != v1.PullAlways {
		image, has, err := p.present(ctx)
		if err != nil || has {
			return image, err
		}
	}
	if p.PullPolicy == v1.PullNever {
		p.event(v1.EventTypeWarning, "ErrImageNeverPull", "Container image %q is not present with pull policy of Never", p.Reference)
		return store.Image{}, &volume.Failure{Cause: ErrImageNeverPull, Subject: p.ref.String(),
			What: fmt.Sprintf("ErrImageNeverPull: image %q is not on this node, or not for this pod's secrets, and pullPolicy is Never", p.ref),
			Next: "preload it, or set pullPolicy IfNotPresent"}
	}
	if time.Now().Before(last.until) {
		p.event(v1.EventTypeNormal, "BackOff", "Back-off pulling image %q", p.Reference)
		return store.Image{}, pullFailed(p.ref, ErrImagePullBackOff, last.err, last.until)
	}
	return p.remote(ctx)
}

// present finds an image on the node that the pod may see, in the store or in a layout.
func (p *pull) present(ctx context.Context) (store.Image, bool, error) {
	image, has, err := p.store().Find(p.ref)
	if err != nil {
		return image, false, err
	}
	if has && !image.Granted(nil) {
		users, err := p.users(ctx)
		if err != nil {
			return image, false, err
		}
		has = image.Granted(grants(users))
	}
	if !has {
		if image, has, err = p.preloaded(ctx); err != nil || !has {
			return image, false, err
		}
	}
	p.event(v1.EventTypeNormal, "Pulled", "Container image %q already present on machine", p.Reference)
	return image, true, nil
}

func (p *pull) preloaded(ctx context.Context) (store.Image, bool, error) {
	for _, dir := range p.config.Layouts {
		from := oci.Layout{Dir: dir}
		found, err := oci.Resolve(ctx, from, p.ref, platform())
		if errors.Is(err, volume.ErrNotFound) {
			continue
		}
		var image store.Image
		if err == nil {
			image, err = p.store().Pull(ctx, from, p.ref, found)
		}
		if err == nil {
			err = p.store().AddName(ctx, image, p.ref.String(), store.Everyone)
		}
		if err != nil {
			return image, false, p.failed(ctx, fmt.Errorf("layout %s: %w", dir, err))
		}
		return image, true, nil
	}
	return store.Image{}, false, nil
}

// remote pulls from the registry.
func (p *pull) remote(ctx context.Context) (store.Image, error) {
	users, err := p.users(ctx)
	if err != nil {
		return store.Image{}, err
	}
	p.event(v1.EventTypeNormal, "Pulling", "Pulling image %q", p.Reference)
	begin := time.Now()
	bounded, cancel := context.WithTimeoutCause(ctx, p.config.PullTimeout, fmt.Errorf("the pull takes longer than %v", p.config.PullTimeout))
	defer cancel()
	var first error
	for _, u := range users {
		image, err := p.pullAs(bounded, u)
		if err == nil {
			took := time.Since(begin).Round(time.Millisecond)
			p.event(v1.EventTypeNormal, "Pulled", "Successfully pulled image %q in %v (%v including waiting). Image size: %d bytes.", p.Reference, took, took, image.Bytes)
			return image, nil
		}
		if first == nil {
			first = err
		}
		if !errors.Is(err, registry.ErrUnauthorized) && !errors.Is(err, volume.ErrNotFound) {
			first = err
			break
		}
	}
	return store.Image{}, p.failed(ctx, first)
}

// failed tells of a failed pull, and returns its error.
func (p *pull) failed(ctx context.Context, err error) error {
	at, counts := p.attempts.failed(ctx, attemptKey{p.Pod.UID, p.ref.String()}, err)
	if !counts {
		return err
	}
	p.event(v1.EventTypeWarning, "Failed", "Failed to pull image %q: %v", p.Reference, err)
	return pullFailed(p.ref, ErrImagePull, err, at)
}

// pullAs pulls as one user.
func (p *pull) pullAs(ctx context.Context, u user) (store.Image, error) {
	client := registry.New(registry.Config{Transport: p.config.Transport, PlainHTTP: p.config.PlainHTTP, Stall: p.config.StallTimeout, Least: p.config.MinRate * int64(p.config.StallTimeout/time.Second)}, u.Credentials)
	image, has := store.Image{}, false
	digest, err := client.Digest(ctx, p.ref)
	if err == nil && digest != "" {
		image, has, err = p.store().Find(p.ref.At(digest))
		has = has && image.CameFrom(p.ref.Name()) // another registry can say so without having it
	}
	if err == nil && !has {
		var found oci.Image
		if found, err = oci.Resolve(ctx, client, p.ref, platform()); err == nil {
			image, err = p.store().Pull(ctx, client, p.ref, found)
		}
	}
	if err == nil {
		err = p.store().AddName(ctx, image, p.ref.String(), u.grant)
	}
	return image, err
}

func (p *pull) event(eventType, reason, format string, args ...any) {
	if sink, err := volume.Role[volume.EventSink](p.Host); err == nil {
		sink.Event(p.Pod, eventType, reason, fmt.Sprintf(format, args...))
	}
}
