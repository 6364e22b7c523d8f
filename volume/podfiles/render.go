package podfiles

import (
	"cmp"
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/payload"
	"github.com/podvol/podvol/volume/internal/podspec"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/validation"
)

// Sources are where the contents of volumes come from. A source that is nil is missed only by
// a volume that needs it: the error is a *[volume.MissingRoleError].
type Sources struct {
	// Objects has the config maps and secrets, as an API server has them: with data, and
	// without stringData. A ClusterTrustBundle by its name comes
	// from it too, and one by its signer where Objects is an [objects.KindReader], unless
	// TrustBundles is set.
	Objects objects.Getter
	// Tokens issues service account tokens.
	Tokens volume.TokenRequester
	// PodCertificates has signers issue certificates to pods.
	PodCertificates volume.PodCertificateRequester
	// TrustBundles has the cluster trust bundles; nil: Objects has them.
	TrustBundles volume.TrustBundleGetter
	// Allocatable says what the node's pods may use in all. Only a resource limit that
	// neither the container nor the pod sets needs it.
	Allocatable volume.AllocatableGetter
	// Events is told of a token that could not be renewed in time and is kept while it is
	// valid; nil: the agent learns of it when the token has expired.
	Events volume.EventSink
}

// Options are the owners of the files. A field that is nil is as the pod's securityContext
// says, by the kubelet's rules.
type Options struct {
	// FsUser is the user that all containers run as: a token is readable by that user
	// alone.
	FsUser *int64
	// FsGroup is the pod's fsGroup: every file belongs to that group, which may read it.
	FsGroup *int64
	// NoOwners: no file has an owner or a group of its own. All belong to the process that
	// writes them, and no group may read a file for the sake of an fsGroup. It is for agents
	// without root, which cannot give files away, and whose containers are of their user.
	NoOwners bool
}

// ErrNoFiles is the cause where a volume is of a kind that has no files of its own: an
// emptyDir, a hostPath, a claim, a file system of a server.
const ErrNoFiles volume.Cause = "the volume has no files of its own"

// Render returns the files of the pod's volume of this name. It touches no file, keeps
// nothing, and changes neither pod nor objects. It may be called concurrently, as the
// sources may. Each call asks for new tokens and certificates: an agent that calls it again and again uses
// [Follow].
//
// The error is a *[volume.Error] that names the pod and the volume. In it is the fault
// with all sources of the volume, each with its object, key and field. It matches:
//
//   - [ErrNoFiles] where the volume is of another kind.
//   - *[volume.InvalidSpecError] where the manifest cannot be, several of them joined:
//     nothing was asked for.
//   - [volume.ErrNotFound] where an object is missing that is not optional.
//   - What the sources say, or the cause of ctx's end.
func Render(ctx context.Context, pod *v1.Pod, volumeName string, from Sources, o Options) (*Set, error) {
	var issued payload.Issued
	return render(ctx, pod, volumeName, from, o, &issued)
}

func render(ctx context.Context, pod *v1.Pod, volumeName string, from Sources, o Options, issued *payload.Issued) (*Set, error) {
	projection, err := projectionOf(pod, volumeName)
	if err != nil {
		return nil, failed(pod, volumeName, err)
	}
	args := podspec.MounterArgs(pod)
	args.FsUser, args.FsGroup = cmp.Or(o.FsUser, args.FsUser), cmp.Or(o.FsGroup, args.FsGroup)
	if o.NoOwners { // a token that is for one user or group is still for its owner alone
		args.FsUser, args.FsGroup = cmp.Or(args.FsUser, args.FsGroup), nil
	}
	files, err := projection.Collect(ctx, from.host(pod), pod, args, issued, nil)
	if err != nil {
		return nil, failed(pod, volumeName, err)
	}
	return newSet(files, projection.DependsOn(pod), o), nil
}

// projectionOf finds out what a volume shows, and refuses what cannot be.
func projectionOf(pod *v1.Pod, volumeName string) (payload.Projection, error) {
	if pod == nil {
		return payload.Projection{}, volume.Invalid("pod", "is missing")
	}
	i := slices.IndexFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == volumeName })
	if i < 0 {
		return payload.Projection{}, volume.Invalid("volumes", "the pod has no volume %q", volumeName)
	}
	v := &pod.Spec.Volumes[i]
	for _, project := range []func(*v1.Volume) (payload.Projection, bool){payload.ConfigMap, payload.Secret, payload.DownwardAPI, payload.Projected} {
		p, ok := project(v)
		if !ok {
			continue
		}
		if err := validation.Files(v); err != nil {
			return p, err
		}
		return p, p.Validate(pod)
	}
	return payload.Projection{}, &volume.Failure{Cause: ErrNoFiles, Subject: volumeName,
		What: "it is neither a configMap, a secret, a downwardAPI nor a projected volume, so it has no files of its own",
		Next: "have it mounted, by a volume manager for example"}
}

// host plays the roles that the files are read by.
func (s Sources) host(pod *v1.Pod) *volume.Host {
	host := &volume.Host{NodeName: types.NodeName(pod.Spec.NodeName), Tokens: s.Tokens, PodCertificates: s.PodCertificates, TrustBundles: s.TrustBundles, Allocatable: s.Allocatable, Events: s.Events}
	if s.Objects == nil {
		s.Objects = noObjects{}
	}
	read := objects.Roles{Source: s.Objects}
	host.Secrets, host.ConfigMaps = read, read
	if host.TrustBundles == nil {
		host.TrustBundles = read
	}
	return host
}

// noObjects says what to do where there are none.
type noObjects struct{}

// Get implements [objects.Getter].
func (noObjects) Get(context.Context, volume.ObjectRef) (metav1.Object, error) {
	return nil, &volume.MissingRoleError{Role: "objects.Getter", Field: "Objects", Advice: "set Objects in podfiles.Sources"}
}

func failed(pod *v1.Pod, volumeName string, err error) error {
	e := &volume.Error{Op: "Render", Volume: volumeName, Err: err}
	if pod != nil {
		e.Pod, e.PodUID = types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, pod.UID
	}
	return e
}

// HasFiles reports whether a volume is of a kind that [Render] knows.
func HasFiles(v *v1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

// fileVolumes are the names of the pod's volumes that have files.
func fileVolumes(pod *v1.Pod) (names []string) {
	for i := range pod.Spec.Volumes {
		if HasFiles(&pod.Spec.Volumes[i]) {
			names = append(names, pod.Spec.Volumes[i].Name)
		}
	}
	return names
}
