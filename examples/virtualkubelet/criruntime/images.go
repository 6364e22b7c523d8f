package criruntime

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podvol/podvol/examples/virtualkubelet/podlife"
)

// image returns a container's image, by its name among those that the runtime has. It is
// pulled where the pull policy says so. An image that is present may be used by all pods,
// whatever their secrets are, unless the policy is Always.
func (r *Runtime) image(ctx context.Context, l podlife.Launch, sandbox *cri.PodSandboxConfig) (*cri.Image, error) {
	name, policy := l.Spec.Image, pullPolicy(l.Spec)
	spec := &cri.ImageSpec{Image: name, UserSpecifiedImage: name}
	has, err := r.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: spec})
	if err != nil {
		return nil, &podlife.StartError{Reason: "ImageInspectError", Err: fmt.Errorf("image %s: %w", name, err)}
	}
	switch {
	case has.Image != nil && policy != v1.PullAlways:
		l.Tell(v1.EventTypeNormal, "Pulled", fmt.Sprintf("Container image %q already present on machine", name))
		return has.Image, nil
	case policy == v1.PullNever:
		return nil, &podlife.StartError{Reason: "ErrImageNeverPull", Err: fmt.Errorf("image %q is not present with pull policy of Never", name)}
	}
	l.Tell(v1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", name))
	begun := time.Now()
	if err := r.pull(ctx, spec, sandbox, credentialsFor(name, l.PullSecrets(ctx))); err != nil {
		return nil, &podlife.StartError{Reason: podlife.ErrImagePull, Err: fmt.Errorf("image %s: %w", name, err)}
	}
	if has, err = r.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: spec}); err != nil || has.Image == nil {
		return nil, &podlife.StartError{Reason: podlife.ErrImagePull, Err: fmt.Errorf("image %s is not there after it was pulled: %v", name, err)}
	}
	l.Tell(v1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %s", name, time.Since(begun).Round(time.Millisecond)))
	return has.Image, nil
}

// pull tries one credential after the other, or none where there are none.
func (r *Runtime) pull(ctx context.Context, spec *cri.ImageSpec, sandbox *cri.PodSandboxConfig, credentials []*cri.AuthConfig) error {
	if len(credentials) == 0 {
		credentials = []*cri.AuthConfig{nil}
	}
	var failed []error
	for _, auth := range credentials {
		_, err := r.images.PullImage(ctx, &cri.PullImageRequest{Image: spec, Auth: auth, SandboxConfig: sandbox})
		if err == nil {
			return nil
		}
		failed = append(failed, err)
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(failed...)
}

// pullPolicy is the API's default where a manifest of a static pod says nothing.
func pullPolicy(c *v1.Container) v1.PullPolicy {
	switch {
	case c.ImagePullPolicy != "":
		return c.ImagePullPolicy
	case strings.Contains(c.Image, "@"):
		return v1.PullIfNotPresent
	case withoutTag(c.Image) == c.Image, strings.HasSuffix(c.Image, ":latest"):
		return v1.PullAlways
	}
	return v1.PullIfNotPresent
}

// imageID is the image as a container's status has it.
func imageID(i *cri.Image) string {
	if len(i.RepoDigests) > 0 {
		return i.RepoDigests[0]
	}
	return i.Id
}
