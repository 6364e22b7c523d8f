package criruntime

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podvol/podvol/examples/virtualkubelet/podlife"
)

// image returns a container's image, by its name among those that the runtime has. It is
// pulled where the pull policy says so.
func (r *Runtime) image(ctx context.Context, c *v1.Container, sandbox *cri.PodSandboxConfig) (*cri.Image, error) {
	spec := &cri.ImageSpec{Image: c.Image, UserSpecifiedImage: c.Image}
	has, err := r.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: spec})
	if err != nil {
		return nil, &podlife.StartError{Reason: "ImageInspectError", Err: fmt.Errorf("image %s: %w", c.Image, err)}
	}
	switch {
	case has.Image != nil && c.ImagePullPolicy != v1.PullAlways:
		return has.Image, nil
	case c.ImagePullPolicy == v1.PullNever:
		return nil, &podlife.StartError{Reason: "ErrImageNeverPull", Err: fmt.Errorf("image %q is not present with pull policy of Never", c.Image)}
	}
	if _, err := r.images.PullImage(ctx, &cri.PullImageRequest{Image: spec, SandboxConfig: sandbox}); err != nil {
		return nil, &podlife.StartError{Reason: "ErrImagePull", Err: fmt.Errorf("image %s: %w", c.Image, err)}
	}
	if has, err = r.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: spec}); err != nil || has.Image == nil {
		return nil, &podlife.StartError{Reason: "ErrImagePull", Err: fmt.Errorf("image %s is not there after it was pulled: %v", c.Image, err)}
	}
	return has.Image, nil
}

// imageID is the image as a container's status has it.
func imageID(i *cri.Image) string {
	if len(i.RepoDigests) > 0 {
		return i.RepoDigests[0]
	}
	return i.Id
}
