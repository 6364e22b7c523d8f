package nfs

import (
	"cmp"
	"context"
	"path"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/util/subpath"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/internal/recycler"
	"github.com/podvol/podvol/volume/internal/sharedirs"
	"github.com/podvol/podvol/volume/recyclerpod"
	"github.com/podvol/podvol/volume/validation"
)

var _ volume.RecyclableVolumePlugin = (*plugin)(nil)

// recycling is the emptying of one released volume.
type recycling struct {
	plugin   *plugin
	export   export
	options  []string
	releases volume.ReleaseVerifier
	recycler.Recycling
}

// Recycle implements [volume.RecyclableVolumePlugin]; [RecycleConfig] says how.
//
//   - The host must have the role [volume.ReleaseVerifier], whose refusal is returned and
//     ends a recycling under way. It also needs [volume.PodRunner], or a Config that
//     enables the embedded recycler. Else the error is a *[volume.MissingRoleError].
//   - The spec must be the stored PersistentVolume's, with UIDs: only the volume's own
//     claim must have left it.
//   - An embedded recycler's error is a *[reclaim.DryRunError], an *[reclaim.IncompleteError]
//     that says how far it came, or the obstacle, such as [volume.ErrInUse] or
//     [ErrHoldsVolumes]. Its mount has the spec's mount options; a pod mounts without
//     them, as in Kubernetes.
//   - Record is not called after the return.
func (p *plugin) Recycle(ctx context.Context, pvName string, spec *volume.Spec, record volume.RecycleEventRecorder) error {
	if err := p.recycle(ctx, pvName, spec, record); err != nil {
		return &volume.Error{Op: "Recycle", Plugin: PluginName, Volume: pvName, Err: err}
	}
	return nil
}

func (p *plugin) recycle(ctx context.Context, pvName string, spec *volume.Spec, record volume.RecycleEventRecorder) error {
	r, err := p.newRecycling(pvName, spec)
	if err != nil {
		return err
	}
	if r.releases, err = pluginbase.ReleaseVerifier(p.Host); err != nil {
		return err
	}
	r.Events.To(record)
	defer r.Events.To(nil)
	if p.config.Recycle.Embedded.Enabled {
		return r.recycleHere(ctx)
	}
	pods, err := pluginbase.Role[volume.PodRunner](p.Host,
		"give the volume host one to have a pod empty the volume, or enable nfs.Config.Recycle.Embedded to have this process do it")
	if err != nil {
		return err
	}
	return r.recycleByPod(ctx, pods)
}

// newRecycling refuses volumes that must not be emptied, as far as the volume
// itself says so.
func (p *plugin) newRecycling(pvName string, spec *volume.Spec) (*recycling, error) {
	source, err := p.Source(spec)
	if err != nil {
		return nil, err
	}
	if err := recycler.CheckReleased(pvName, spec); err != nil {
		return nil, err
	}
	if err := pluginbase.CheckFilesystem(spec, "nfs"); err != nil {
		return nil, err
	}
	e, err := parseExport(source)
	if err != nil {
		return nil, err
	}
	options, err := pluginbase.Options(spec, false)
	if err != nil {
		return nil, err
	}
	if source.ReadOnly || pluginbase.ReadOnly(spec) || slices.Contains(options, "ro") {
		return nil, recycler.ReadOnly("nfs.readOnly")
	}
	pv, config := spec.PersistentVolume.DeepCopy(), p.config.Recycle
	r := &recycling{plugin: p, export: e, options: options, Recycling: recycler.Recycling{
		PV: pv, Source: e.String(), On: sharedirs.Share, Timeout: config.timeout(pv),
		Action: config.Embedded.Action, ProgressEvery: config.Embedded.ProgressEvery,
		Explain: func(err error) error { return withAdvice(e, err) },
	}}
	r.VerifyUnused = r.verifyUnused
	return r, nil
}

// verify asks whether the data may be destroyed. It is asked right before each
// destruction, however shortly before it was asked, and all the time during it.
func (r *recycling) verify(ctx context.Context) error {
	return volume.NothingDone(r.releases.VerifyReleased(ctx, r.PV.DeepCopy()))
}

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
type RecycleAction = recycler.Action

const (
	// RecycleDryRun only says what would be deleted; the error is a
	// *[reclaim.DryRunError].
	RecycleDryRun = recycler.DryRun
	// RecycleDelete deletes it.
	RecycleDelete = recycler.Delete
	// RecycleArchive moves it into an archive.
	RecycleArchive = recycler.Archive
)

// timeout is how long emptying a volume may take.
func (c RecycleConfig) timeout(pv *v1.PersistentVolume) time.Duration {
	return recycler.Timeout(pv, cmp.Or(c.MinimumTimeout, 5*time.Minute), c.TimeoutPerGiB)
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
	if c.Action != RecycleArchive {
		return c.Action.Check("Recycle.Embedded.Action")
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
	if pathin.Overlap(volumePath, archive) {
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

const (
	// recyclerImage has a shell, find and ls, as images of this name have.
	recyclerImage = "busybox:stable"
	// recyclerScript fails if anything is left, and at once where there is a share
	// that has volumes provisioned in it, as [ErrHoldsVolumes] says. -xdev keeps it
	// out of mounts in the volume. Not every busybox's find knows -delete.
	recyclerScript = `test -d /scrub || exit 1
books=$(find /scrub -xdev -type d -iname .podvol) || exit 1
if test -n "$books"; then
  echo "this has a directory .podvol: volumes are provisioned beside it, and nothing is emptied: $books" >&2
  exit 1
fi
find /scrub -xdev -mindepth 1 ! -type d -exec rm -f {} + &&
find /scrub -xdev -depth -mindepth 1 -type d -exec rmdir {} + &&
test -z "$(ls -A /scrub)"`
	// recyclerName is what the names of these pods begin with, as in Kubernetes.
	recyclerName = "recycler-for-"
	// maxPodName is the API's limit for a DNS subdomain.
	maxPodName = 253
)

// recyclerTemplate is the pod that empties volumes where no other is given.
func recyclerTemplate() *v1.Pod {
	no := false
	return &v1.Pod{Spec: v1.PodSpec{
		RestartPolicy:                v1.RestartPolicyNever,
		AutomountServiceAccountToken: &no,
		Volumes:                      []v1.Volume{{Name: "vol"}},
		Containers: []v1.Container{{
			Name: "recycler", Image: recyclerImage,
			Command: []string{"/bin/sh", "-c", recyclerScript},
			// What the script says is what the release fails with.
			TerminationMessagePolicy: v1.TerminationMessageFallbackToLogsOnError,
			VolumeMounts:             []v1.VolumeMount{{Name: "vol", MountPath: "/scrub"}},
		}},
	}}
}

// recyclerPod is the pod that empties pv for this release. Its name is the same
// whenever it is asked for, so that a restarted process finds it, and another
// one for every other release: that an earlier one succeeded means nothing.
func recyclerPod(template *v1.Pod, pv *v1.PersistentVolume, timeout time.Duration) *v1.Pod {
	if template == nil {
		template = recyclerTemplate()
	}
	release := recyclerpod.ReleaseID(pv)
	pod := &v1.Pod{Spec: *template.Spec.DeepCopy()}
	pod.Namespace = template.Namespace
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	pod.Name = recycler.NameWithin(recyclerName+pv.Name, maxPodName-len(release)-1) + "-" + release
	pod.Labels = withKey(template.Labels, recyclerpod.Label, release)
	pod.Annotations = withKey(template.Annotations, recyclerpod.Annotation, pv.Name)
	seconds := int64(timeout / time.Second)
	pod.Spec.ActiveDeadlineSeconds = &seconds
	pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{NFS: pv.Spec.NFS.DeepCopy()}
	return pod
}

func withKey(given map[string]string, key, value string) map[string]string {
	all := map[string]string{key: value}
	for k, v := range given {
		if k != key {
			all[k] = v
		}
	}
	return all
}

// recycleByPod has a pod empty the volume. The pod's own deadline ends it.
func (r *recycling) recycleByPod(ctx context.Context, pods volume.PodRunner) error {
	pod := recyclerPod(r.plugin.config.Recycle.Pod, r.PV, r.Timeout)
	if err := r.verify(ctx); err != nil {
		return err
	}
	r.Events.Normal("pod %s/%s empties %s, in no more than %s", pod.Namespace, pod.Name, r.export, r.Timeout)
	return pods.RunPod(ctx, pod, r.verify, r.Events.Tell)
}
