package podlife

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/containerenv"
	"github.com/podvol/podvol/volume/containermounts"
)

// Runtime runs containers. All calls may be concurrent, also for one pod, and neither
// change nor keep a pod. What takes long ends with ctx.
type Runtime interface {
	// Check refuses a pod that asks for what the runtime does not offer, by name.
	Check(pod *v1.Pod) error
	// MountOptions are what the mounts of a pod's containers may ask for, and the ids of its
	// user namespace. The caller adds the environment.
	MountOptions(ctx context.Context, pod *v1.Pod) (containermounts.Options, error)
	// StartPod makes what the containers of a pod share. It is idempotent: what runs
	// already, also from an earlier agent, is returned.
	StartPod(ctx context.Context, pod *v1.Pod) (Shared, error)
	// Found returns the last container of each name that this or an earlier agent has
	// started for a pod. Processes that end with their agent are not among them: they
	// have ended when Found returns.
	Found(ctx context.Context, pod *v1.Pod) ([]Found, error)
	// Start starts a container. A *StartError has the reason for the container's status.
	Start(ctx context.Context, l Launch) (Container, error)
	// StopPod ends what runs for a pod, at once. It returns nil when nothing does, and is
	// idempotent, also for pods that the runtime does not know.
	StopPod(ctx context.Context, pod types.UID) error
	// RemovePod removes what is left of a stopped pod, such as its logs. It is idempotent.
	RemovePod(ctx context.Context, pod types.UID) error
	// Pods lists the pods of which anything is left.
	Pods(ctx context.Context) ([]types.UID, error)
}

// Shared is what the containers of a pod share.
type Shared struct {
	// IPs are the pod's addresses, the first one first; empty: the node's.
	IPs []string
}

// Launch is one start of a container.
type Launch struct {
	Pod *v1.Pod
	// Spec is the container's; for an ephemeral container the common part.
	Spec *v1.Container
	// Attempt counts the starts of the container before this one.
	Attempt int32
	Env     *containerenv.Environment
	Mounts  []containermounts.Mount
	Devices []containermounts.Device
	// Groups are those that volumes ask for, besides the pod's own.
	Groups []int64
	// PullSecrets reads the secrets with which images may be pulled, as far as they are
	// there. It is called where an image must be pulled.
	PullSecrets func(context.Context) []*v1.Secret
	// Tell sends an event about the pod.
	Tell func(eventType, reason, message string)
	// Target is the ID of the container whose processes an ephemeral container sees;
	// empty: none.
	Target string
}

// Container is one run of a container.
type Container interface {
	Info() Info
	// Wait returns when the container has ended, or with the cause of ctx. It may be
	// called once.
	Wait(ctx context.Context) (Ended, error)
	// Stop asks the container to end, and kills it after the grace period. It returns
	// nil when that is done. It may be repeated with another period.
	Stop(ctx context.Context, grace time.Duration) error
	// Exec runs a command in the container, and returns its output and exit code.
	Exec(ctx context.Context, command []string, timeout time.Duration) (output string, code int, err error)
}

// Info is what a status says of a run. Image and ImageID may be empty.
type Info struct {
	ID, Image, ImageID string
	Started            time.Time
}

// Ended is how a run has ended. Empty fields are filled in.
type Ended struct {
	Code              int
	Signal            int
	Reason, Message   string
	Started, Finished time.Time
}

// Found is a container of an earlier start: one that Runs, or one that has Ended.
type Found struct {
	Name    string
	Attempt int32
	Info    Info
	Runs    Container
	Ended   *Ended
}

// ErrImagePull is the reason of a [StartError] that says that an image cannot be pulled.
const ErrImagePull = "ErrImagePull"

// StartError says why a container was not started, in the words of its status.
type StartError struct {
	// Reason is for people, such as [ErrImagePull].
	Reason string
	// Code is not zero where the container counts as started and ended with that code, so
	// that the restart policy decides what comes next.
	Code int
	Err  error
}

func (e *StartError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }
