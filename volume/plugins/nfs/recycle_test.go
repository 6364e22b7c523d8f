package nfs

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/recycler"
	"github.com/podvol/podvol/volume/recyclerpod"
)

// releasedSpec is a volume of 10.0.0.1:/export that its claim has left.
func releasedSpec(change ...func(*v1.PersistentVolume)) *volume.Spec {
	pv := &v1.PersistentVolume{}
	pv.Name, pv.UID = "pv1", "uid1"
	pv.Spec.NFS = &v1.NFSVolumeSource{Server: "10.0.0.1", Path: "/export"}
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
	pv.Spec.MountOptions = []string{"vers=4.1"}
	pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRecycle
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ops", Name: "data", UID: "claim1"}
	pv.Status.Phase = v1.VolumeReleased
	for _, f := range change {
		f(pv)
	}
	return volume.NewSpecFromPersistentVolume(pv, false)
}

// verdicts answers VerifyReleased with one after the other, then with nil.
type verdicts struct {
	asked atomic.Int32
	errs  []error
}

func (v *verdicts) VerifyReleased(_ context.Context, pv *v1.PersistentVolume) error {
	pv.Name = "changed by whoever was asked"
	if n := int(v.asked.Add(1)); n <= len(v.errs) {
		return v.errs[n-1]
	}
	return nil
}

// runner remembers the pod it ran.
type runner struct {
	pod *v1.Pod
	err error
}

func (r *runner) RunPod(ctx context.Context, pod *v1.Pod, mayRun func(context.Context) error, record volume.RecycleEventRecorder) error {
	if err := mayRun(ctx); err != nil {
		return err
	}
	r.pod = pod
	record(v1.EventTypeNormal, "the pod says so")
	return r.err
}

// events is what was recorded.
type events []string

func (e *events) record(eventType, message string) { *e = append(*e, eventType+" "+message) }

func (e events) contain(text string) bool { return strings.Contains(strings.Join(e, "\n"), text) }

func recycle(t *testing.T, p *plugin, spec *volume.Spec) (events, error) {
	t.Helper()
	var heard events
	before := spec.PersistentVolume.DeepCopy()
	err := p.Recycle(t.Context(), spec.Name(), spec, heard.record)
	if diff := cmp.Diff(before, spec.PersistentVolume); diff != "" {
		t.Errorf("the spec was changed:\n%s", diff)
	}
	if e, ok := errors.AsType[*volume.Error](err); err != nil && (!ok || e.Op != "Recycle" || e.Volume != spec.Name()) {
		t.Errorf("the error is not of this volume: %v", err)
	}
	return heard, err
}

func TestRecyclerPod(t *testing.T) {
	p, fake, _ := newWorker(t, Config{})
	pods := &runner{}
	host := p.Host.(*volume.Host)
	host.Pods, host.Releases = pods, &verdicts{}
	spec := releasedSpec(func(pv *v1.PersistentVolume) {
		pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("100Gi")}
	})
	heard, err := recycle(t, p, spec)
	if err != nil || !heard.contain("10.0.0.1:/export") || !heard.contain("the pod says so") {
		t.Fatalf("%q, %v", heard, err)
	}
	pod := pods.pod
	if pod.Namespace != "default" || pod.Name != "recycler-for-pv1-"+recyclerpod.ReleaseID(spec.PersistentVolume) ||
		pod.Labels[recyclerpod.Label] != recyclerpod.ReleaseID(spec.PersistentVolume) || pod.Annotations[recyclerpod.Annotation] != "pv1" {
		t.Errorf("the pod is %+v", pod.ObjectMeta)
	}
	if s := pod.Spec; s.RestartPolicy != v1.RestartPolicyNever || *s.ActiveDeadlineSeconds != 3000 || *s.AutomountServiceAccountToken ||
		s.Containers[0].VolumeMounts[0].MountPath != "/scrub" || !cmp.Equal(s.Volumes[0].NFS, spec.PersistentVolume.Spec.NFS) {
		t.Errorf("the pod is %+v", s)
	}
	if err := checkRecyclerPod(recyclerTemplate()); err != nil {
		t.Errorf("the template that is built in: %v", err)
	}
	if calls := fake.Calls(); len(calls) > 0 {
		t.Errorf("mounted: %v", calls)
	}

	pods.err = recyclerpod.Failed(types.NamespacedName{}, "", "no space left")
	if _, err := recycle(t, p, spec); !errors.Is(err, pods.err) || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("a pod that fails: %v", err)
	}
}

// The release ends between the order and the moment in which the pod is created.
func TestRecyclerPodAsksRightBefore(t *testing.T) {
	p, _, _ := newWorker(t, Config{})
	host, pods, bound := p.Host.(*volume.Host), &runner{}, errors.New("bound to a new claim")
	host.Pods, host.Releases = pods, &verdicts{errs: []error{nil, bound}}
	if _, err := recycle(t, p, releasedSpec()); !errors.Is(err, bound) || volume.IsUncertain(err) || pods.pod != nil {
		t.Errorf("Recycle = %v, pod %v", err, pods.pod)
	}
}

func TestRecyclerPodOfATemplate(t *testing.T) {
	template := recyclerTemplate()
	template.Namespace, template.Name = "infra", "ignored"
	template.Labels = map[string]string{"app": "recycler", recyclerpod.Label: "forged"}
	template.Spec.Containers[0].Image = "example.com/own"
	template.Spec.Volumes = append(template.Spec.Volumes, v1.Volume{Name: "second"})
	before := template.DeepCopy()
	spec := releasedSpec(func(pv *v1.PersistentVolume) { pv.Name = strings.Repeat("n", 253) })
	pod := recyclerPod(template, spec.PersistentVolume, time.Minute)
	if diff := cmp.Diff(before, template); diff != "" {
		t.Errorf("the template was changed:\n%s", diff)
	}
	if pod.Namespace != "infra" || len(pod.Name) != maxPodName || pod.Labels["app"] != "recycler" ||
		pod.Labels[recyclerpod.Label] != recyclerpod.ReleaseID(spec.PersistentVolume) ||
		pod.Spec.Containers[0].Image != "example.com/own" || pod.Spec.Volumes[1].Name != "second" {
		t.Errorf("the pod is %+v", pod)
	}
	other := releasedSpec(func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef.UID = "claim2" })
	if recyclerPod(nil, other.PersistentVolume, time.Minute).Name == recyclerPod(nil, releasedSpec().PersistentVolume, time.Minute).Name {
		t.Error("the pods of two releases have one name, so that the success of one would count for both")
	}
}

func TestRecycleTimeout(t *testing.T) {
	for _, tc := range []struct {
		capacity string
		config   RecycleConfig
		want     time.Duration
	}{
		{"", RecycleConfig{}, 300 * time.Second},
		{"1Gi", RecycleConfig{}, 300 * time.Second},
		{"10Gi", RecycleConfig{}, 300 * time.Second},
		{"11Gi", RecycleConfig{}, 330 * time.Second},
		{"2047Mi", RecycleConfig{TimeoutPerGiB: time.Hour}, time.Hour},
		{"1Ti", RecycleConfig{}, 1024 * 30 * time.Second},
		{"7Ei", RecycleConfig{}, recycler.MaxTimeout},
		{"2Gi", RecycleConfig{MinimumTimeout: time.Second, TimeoutPerGiB: 2 * time.Second}, 4 * time.Second},
	} {
		pv := &v1.PersistentVolume{}
		if tc.capacity != "" {
			pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse(tc.capacity)}
		}
		if got := tc.config.timeout(pv); got != tc.want {
			t.Errorf("%s with %+v: %v, want %v", tc.capacity, tc.config, got, tc.want)
		}
	}
}

func TestRecycleConfigsThatCannotWork(t *testing.T) {
	template := func(change func(*v1.Pod)) RecycleConfig {
		pod := recyclerTemplate()
		change(pod)
		return RecycleConfig{Pod: pod}
	}
	archive := func(share, dir string) RecycleConfig {
		return RecycleConfig{Embedded: EmbeddedRecycling{Action: RecycleArchive, ArchiveShare: share, ArchiveDir: dir}}
	}
	for name, config := range map[string]RecycleConfig{
		"negative":      {MinimumTimeout: -1},
		"no volume":     template(func(p *v1.Pod) { p.Spec.Volumes = nil }),
		"not mounted":   template(func(p *v1.Pod) { p.Spec.Containers[0].VolumeMounts = nil }),
		"read-only":     template(func(p *v1.Pod) { p.Spec.Containers[0].VolumeMounts[0].ReadOnly = true }),
		"a part":        template(func(p *v1.Pod) { p.Spec.Containers[0].VolumeMounts[0].SubPath = "a" }),
		"never ends":    template(func(p *v1.Pod) { p.Spec.RestartPolicy = "" }),
		"action":        {Embedded: EmbeddedRecycling{Action: "Shred"}},
		"no archive":    archive("", ""),
		"relative":      archive("exports", "archive"),
		"the share":     archive("/exports", "."),
		"out of it":     archive("/exports", "../archive"),
		"archive is /x": archive("/exports", "/x"),
	} {
		err := New(Config{Recycle: config}).Init(&volume.Host{})
		if _, ok := errors.AsType[*volume.InvalidSpecError](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := New(Config{Recycle: archive("/exports", "a/b")}).Init(&volume.Host{}); err != nil {
		t.Error(err)
	}
}

func TestVolumesThatAreNotRecycled(t *testing.T) {
	block := v1.PersistentVolumeBlock
	for name, change := range map[string]func(*v1.PersistentVolume){
		"retained": func(pv *v1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
		},
		"never claimed":    func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil },
		"without UID":      func(pv *v1.PersistentVolume) { pv.UID = "" },
		"pre-bound":        func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef.UID = "" },
		"read-only":        func(pv *v1.PersistentVolume) { pv.Spec.NFS.ReadOnly = true },
		"ro":               func(pv *v1.PersistentVolume) { pv.Spec.MountOptions = []string{"ro"} },
		"ReadOnlyMany":     func(pv *v1.PersistentVolume) { pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany} },
		"block":            func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = &block },
		"no server":        func(pv *v1.PersistentVolume) { pv.Spec.NFS.Server = "" },
		"options as host":  func(pv *v1.PersistentVolume) { pv.Spec.NFS.Server = "-obind" },
		"path upwards":     func(pv *v1.PersistentVolume) { pv.Spec.NFS.Path = "/export/../other" },
		"dangerous option": func(pv *v1.PersistentVolume) { pv.Spec.MountOptions = []string{"bind"} },
		"no NFS":           func(pv *v1.PersistentVolume) { pv.Spec.NFS = nil },
	} {
		t.Run(name, func(t *testing.T) {
			for _, config := range []Config{{}, deleting()} {
				p, fake, served := newWorker(t, config)
				host, pods := p.Host.(*volume.Host), &runner{}
				host.Pods, host.Releases = pods, &verdicts{}
				write(t, served, "kept")
				if _, err := recycle(t, p, releasedSpec(change)); err == nil || volume.IsUncertain(err) {
					t.Errorf("Recycle = %v", err)
				}
				if calls := fake.Calls(); len(calls) > 0 || pods.pod != nil {
					t.Errorf("calls %v, pod %v", calls, pods.pod)
				}
			}
		})
	}
	p, _, _ := newWorker(t, Config{})
	inline := volume.NewSpecFromVolume(&v1.Volume{Name: "pv1", VolumeSource: v1.VolumeSource{NFS: releasedSpec().PersistentVolume.Spec.NFS}})
	for _, spec := range []*volume.Spec{nil, inline} {
		if err := p.Recycle(t.Context(), "pv1", spec, nil); err == nil || volume.IsUncertain(err) {
			t.Errorf("Recycle of %v = %v", spec, err)
		}
	}
	if err := p.Recycle(t.Context(), "pv2", releasedSpec(), nil); err == nil {
		t.Error("another volume than the one that was named")
	}
}

func TestRecycleNeedsItsRoles(t *testing.T) {
	for name, tc := range map[string]struct {
		config Config
		give   func(*volume.Host)
		want   string
		advice string
	}{
		"nobody knows":           {give: func(h *volume.Host) { h.Pods = &runner{} }, want: "volume.ReleaseVerifier", advice: "release.Verifier"},
		"nobody runs pods":       {give: func(h *volume.Host) { h.Releases = &verdicts{} }, want: "volume.PodRunner", advice: "nfs.Config.Recycle.Embedded"},
		"embedded, nobody knows": {config: deleting(), give: func(h *volume.Host) { h.Pods = &runner{} }, want: "volume.ReleaseVerifier", advice: "release.Verifier"},
	} {
		p, fake, served := newWorker(t, tc.config)
		tc.give(p.Host.(*volume.Host))
		write(t, served, "kept")
		_, err := recycle(t, p, releasedSpec())
		if e, ok := errors.AsType[*volume.MissingRoleError](err); !ok || e.Role != tc.want || !strings.Contains(err.Error(), tc.advice) || volume.IsUncertain(err) || len(fake.Calls()) > 0 {
			t.Errorf("%s: %v", name, err)
		}
		wantFiles(t, served, "kept")
	}
}

// The script of the built-in pod, in a shell like that of its image.
func TestRecyclerScript(t *testing.T) { testRecyclerScript(t, "/bin/sh") }

func testRecyclerScript(t *testing.T, shell ...string) {
	t.Helper()
	base := t.TempDir()
	scrub, outside := filepath.Join(base, "scrub"), filepath.Join(base, "outside")
	write(t, outside, "kept")
	write(t, scrub, "a", ".hidden", "..data", "-rf", "a b\nc", "d/e/f")
	if err := os.Symlink(outside, filepath.Join(scrub, "link")); err != nil {
		t.Fatal(err)
	}
	script := strings.ReplaceAll(recyclerScript, "/scrub", scrub)
	run := func() error {
		out, err := exec.CommandContext(t.Context(), shell[0], append(shell[1:], "-c", script)...).CombinedOutput()
		if len(out) > 0 {
			t.Logf("%s", out)
		}
		return err
	}
	for range 2 {
		if err := run(); err != nil {
			t.Error(err)
		}
		wantFiles(t, scrub)
		wantFiles(t, outside, "kept")
	}
	for _, share := range []string{"", "d/k8s"} {
		book, retained := filepath.Join(share, ".podvol/marks/a.json"), filepath.Join(share, "retained")
		write(t, scrub, book, retained)
		if err := run(); err == nil {
			t.Errorf("it empties a share that has volumes provisioned in it, %q", share)
		}
		wantFiles(t, scrub, book, retained)
		if err := os.RemoveAll(scrub); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(); err == nil {
		t.Error("it succeeds without a volume")
	}
}
