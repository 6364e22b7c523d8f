package nfs

import (
	"cmp"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/util/subpath"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/validation"
)

// RecycleConfig is how a released PersistentVolume is emptied. Its zero value
// has that done by a pod, as Kubernetes does, if the host can run one (role
// [volume.PodRunner]), and by nothing else. In either way the host must know that
// the volume may be emptied (role [volume.ReleaseVerifier]).
type RecycleConfig struct {
	// Pod is the template of the pod; nil is a pod of one container with a
	// common shell. The source of its first volume becomes the volume to empty,
	// which a container has to mount writable; its name, labels and
	// activeDeadlineSeconds are completed. It has to look by itself for what the
	// built-in one and the embedded recycler refuse: a share that has volumes
	// provisioned in it, which has a directory ".podvol". It must not be changed
	// any more.
	Pod *v1.Pod
	// MinimumTimeout and TimeoutPerGiB are how long an emptying may take: the
	// latter for each full GiB of the volume's capacity, and no less than the
	// former. 0 means five minutes and 30 seconds, as in Kubernetes.
	MinimumTimeout, TimeoutPerGiB time.Duration
	// Embedded has this process empty volumes itself.
	Embedded EmbeddedRecycling
}

// EmbeddedRecycling is how this process empties volumes itself, instead of
// running a pod: it mounts the export where no pod sees it.
type EmbeddedRecycling struct {
	// Enabled turns it on.
	Enabled bool
	// ProgressEvery is the least time between two of its progress events. 0
	// means ten seconds.
	ProgressEvery time.Duration
	// Action chooses what to do; nothing is deleted by default.
	Action RecycleAction
	// ArchiveShare and ArchiveDir say where [RecycleArchive] moves things. An archive
	// cannot lie in the volume, whose next claim would see it, and files can only be
	// moved without a copy within one mount.
	//
	//   - ArchiveShare is a directory that the server exports too, strictly above the
	//     volumes' ("/exports", for volumes like /exports/pv1).
	//   - ArchiveDir is a path in it ("archive"), which is made where it is missing and
	//     neither holds a volume nor lies in one. All its directories must be root's or
	//     the agent's own, and writable by no other user.
	//   - Each release gets a directory below it, of mode 0700, named after
	//     PersistentVolume and release.
	ArchiveShare, ArchiveDir string
}

// RecycleAction is the embedded recycler's action on a volume's content.
type RecycleAction string

const (
	// RecycleDryRun only says what would be deleted; the error is a
	// *[reclaim.DryRunError].
	RecycleDryRun RecycleAction = ""
	// RecycleDelete deletes it.
	RecycleDelete RecycleAction = "Delete"
	// RecycleArchive moves it into an archive.
	RecycleArchive RecycleAction = "Archive"
)

const (
	defaultMinimumTimeout = 300 * time.Second
	defaultTimeoutPerGiB  = 30 * time.Second
	defaultProgressEvery  = 10 * time.Second
	// maxTimeout is the most that the API takes as activeDeadlineSeconds.
	maxTimeout = math.MaxInt32 * time.Second
)

// timeout is how long emptying a volume of this capacity may take.
func (c RecycleConfig) timeout(pv *v1.PersistentVolume) time.Duration {
	capacity := pv.Spec.Capacity[v1.ResourceStorage]
	gib := capacity.Value() >> 30
	least := cmp.Or(c.MinimumTimeout, defaultMinimumTimeout)
	each := cmp.Or(c.TimeoutPerGiB, defaultTimeoutPerGiB)
	if gib > int64(maxTimeout/each) {
		return maxTimeout
	}
	return min(maxTimeout, max(least, time.Duration(gib)*each))
}

func (c RecycleConfig) check() error {
	if c.MinimumTimeout < 0 || c.TimeoutPerGiB < 0 {
		return volume.Invalid("Recycle.MinimumTimeout and TimeoutPerGiB", "must not be negative")
	}
	if err := checkRecyclerPod(c.Pod); err != nil {
		return err
	}
	return c.Embedded.check()
}

func (c EmbeddedRecycling) check() error {
	switch c.Action {
	case RecycleDryRun, RecycleDelete:
		return nil
	case RecycleArchive:
	default:
		return volume.Invalid("Recycle.Embedded.Action", "%q is none of %q, %q and %q", c.Action, RecycleDryRun, RecycleDelete, RecycleArchive)
	}
	if err := validation.CheckAbsolutePath("Recycle.Embedded.ArchiveShare", c.ArchiveShare); err != nil {
		return err
	}
	if err := subpath.Check(c.ArchiveDir); err != nil || path.Clean(c.ArchiveDir) == "." {
		return volume.Invalid("Recycle.Embedded.ArchiveDir", "%q is no path strictly below ArchiveShare", c.ArchiveDir)
	}
	return nil
}

// inShare returns the path of an export from the share that also has the
// archive, and refuses volumes that cannot be archived there.
func (c EmbeddedRecycling) inShare(e export) (string, error) {
	share, archive := path.Clean(c.ArchiveShare), path.Join(c.ArchiveShare, c.ArchiveDir)
	volumePath := path.Clean(e.path)
	rest, ok := pathin.Cut(share, volumePath)
	if !ok || rest == "" {
		return "", volume.Invalid("nfs.path", "%q is not strictly below %q, the share that has the archive; only what is can be moved there", e.path, c.ArchiveShare)
	}
	_, holds := pathin.Cut(volumePath, archive)
	_, within := pathin.Cut(archive, volumePath)
	if holds || within {
		return "", volume.Invalid("nfs.path", "%q and the archive %q lie within one another, so that the next claim would see what is archived", e.path, archive)
	}
	return strings.TrimPrefix(rest, "/"), nil
}

// checkRecyclerPod refuses a template that would not empty the volume, or never
// end.
func checkRecyclerPod(pod *v1.Pod) error {
	if pod == nil {
		return nil
	}
	refuse := func(format string, args ...any) error { return volume.Invalid("Recycle.Pod", format, args...) }
	switch {
	case len(pod.Spec.Volumes) == 0 || pod.Spec.Volumes[0].Name == "":
		return refuse("needs a volume with a name, whose source is replaced by the volume to empty")
	case pod.Spec.RestartPolicy != v1.RestartPolicyNever && pod.Spec.RestartPolicy != v1.RestartPolicyOnFailure:
		return refuse("has restartPolicy %q and so never ends; use %s", pod.Spec.RestartPolicy, v1.RestartPolicyNever)
	}
	name := pod.Spec.Volumes[0].Name
	mounts := func(c v1.Container) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool {
			return m.Name == name && !m.ReadOnly && m.SubPath == "" && m.SubPathExpr == ""
		})
	}
	if !slices.ContainsFunc(pod.Spec.Containers, mounts) {
		return refuse("has no container that mounts volume %q, all of it and writable", name)
	}
	return nil
}
