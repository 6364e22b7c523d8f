package nfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
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
	if pod.Namespace != "default" || pod.Name != "recycler-for-pv1-"+volume.ReleaseID(spec.PersistentVolume) ||
		pod.Labels[volume.RecyclerLabel] != volume.ReleaseID(spec.PersistentVolume) || pod.Annotations[volume.RecyclerAnnotation] != "pv1" {
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

	pods.err = &volume.PodFailedError{Message: "no space left"}
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
	template.Labels = map[string]string{"app": "recycler", volume.RecyclerLabel: "forged"}
	template.Spec.Containers[0].Image = "example.com/own"
	template.Spec.Volumes = append(template.Spec.Volumes, v1.Volume{Name: "second"})
	before := template.DeepCopy()
	spec := releasedSpec(func(pv *v1.PersistentVolume) { pv.Name = strings.Repeat("n", 253) })
	pod := recyclerPod(template, spec.PersistentVolume, time.Minute)
	if diff := cmp.Diff(before, template); diff != "" {
		t.Errorf("the template was changed:\n%s", diff)
	}
	if pod.Namespace != "infra" || len(pod.Name) != maxPodName || pod.Labels["app"] != "recycler" ||
		pod.Labels[volume.RecyclerLabel] != volume.ReleaseID(spec.PersistentVolume) ||
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
		{"7Ei", RecycleConfig{}, maxTimeout},
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
	}{
		"nobody knows":           {give: func(h *volume.Host) { h.Pods = &runner{} }, want: "volume.ReleaseVerifier"},
		"nobody runs pods":       {give: func(h *volume.Host) { h.Releases = &verdicts{} }, want: "volume.PodRunner"},
		"embedded, nobody knows": {config: deleting(), give: func(h *volume.Host) { h.Pods = &runner{} }, want: "volume.ReleaseVerifier"},
	} {
		p, fake, served := newWorker(t, tc.config)
		tc.give(p.Host.(*volume.Host))
		write(t, served, "kept")
		_, err := recycle(t, p, releasedSpec())
		if e, ok := errors.AsType[*volume.MissingRoleError](err); !ok || e.Role != tc.want || volume.IsUncertain(err) || len(fake.Calls()) > 0 {
			t.Errorf("%s: %v", name, err)
		}
		wantFiles(t, served, "kept")
	}
}

func deleting() Config {
	return Config{Recycle: RecycleConfig{Embedded: EmbeddedRecycling{Enabled: true, Action: RecycleDelete}}}
}

func write(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("data"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

// wantFiles fails unless these are the files and links below dir.
func wantFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	found := []string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			found = append(found, rel)
		}
		return err
	})
	if diff := cmp.Diff(append([]string{}, want...), found); err != nil || diff != "" {
		t.Errorf("below %s (-want +got), %v:\n%s", dir, err, diff)
	}
}

// newEmbedded is newWorker with a verifier that lets everything go.
func newEmbedded(t *testing.T, config Config) (*plugin, *mount.FakeMounter, string, *verdicts) {
	t.Helper()
	p, fake, served := newWorker(t, config)
	asked := &verdicts{}
	p.Host.(*volume.Host).Releases = asked
	return p, fake, served, asked
}

func TestEmbeddedRecyclerDeletes(t *testing.T) {
	p, fake, served, asked := newEmbedded(t, deleting())
	outside := t.TempDir()
	write(t, outside, "kept")
	write(t, served, "a", ".hidden", "d/e/f")
	if err := errors.Join(os.Symlink(outside, filepath.Join(served, "link")), os.Chmod(served, 0o2770)); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(served)
	if err != nil {
		t.Fatal(err)
	}
	heard, err := recycle(t, p, releasedSpec())
	if err != nil || !heard.contain("is empty: 6 entries deleted") {
		t.Errorf("%q, %v", heard, err)
	}
	wantFiles(t, served)
	wantFiles(t, outside, "kept")
	if after, err := os.Stat(served); err != nil || !os.SameFile(before, after) || before.Mode() != after.Mode() {
		t.Errorf("the root was %v and is %v, %v", before.Mode(), after.Mode(), err)
	}
	if n := asked.asked.Load(); n != 2 {
		t.Errorf("VerifyReleased was asked %d times, want before the mount and right before deleting", n)
	}
	call := fake.Calls()[0]
	if options := strings.Join(call.Options, ","); call.Source != "10.0.0.1:/export" || options != "vers=4.1,nosuid,nodev,noexec" {
		t.Errorf("mounted %v", call)
	}
	workIsGone(t, p, fake)
	if _, err := recycle(t, p, releasedSpec()); err != nil {
		t.Errorf("of an empty volume: %v", err)
	}
}

func TestEmbeddedRecyclerOnlySaysWhatItWouldDelete(t *testing.T) {
	p, fake, served, _ := newEmbedded(t, Config{Recycle: RecycleConfig{Embedded: EmbeddedRecycling{Enabled: true}}})
	write(t, served, "a", "d/b")
	for range 2 {
		heard, err := recycle(t, p, releasedSpec())
		e, ok := errors.AsType[*volume.DryRunError](err)
		if !ok || !errors.Is(err, volume.ErrDryRun) || e.Entries != 3 || len(e.First) != 2 || e.Source != "10.0.0.1:/export" || volume.IsUncertain(err) {
			t.Errorf("Recycle = %v", err)
		}
		if !heard.contain("3 entries") {
			t.Errorf("heard %q", heard)
		}
		wantFiles(t, served, "a", "d/b")
	}
	workIsGone(t, p, fake)
	if err := errors.Join(os.Remove(filepath.Join(served, "a")), os.RemoveAll(filepath.Join(served, "d"))); err != nil {
		t.Fatal(err)
	}
	if _, err := recycle(t, p, releasedSpec()); !errors.Is(err, volume.ErrDryRun) {
		t.Errorf("of an empty volume: %v", err)
	}
}

// What is used is kept, also if that shows only once the export is mounted.
func TestUsedVolumeIsNotEmptied(t *testing.T) {
	used := errors.New("pod ops/p uses it")
	for name, config := range map[string]Config{"delete": deleting(), "archive": archiving()} {
		for moment, errs := range map[string][]error{"before the mount": {used}, "right before": {nil, used}} {
			t.Run(name+" "+moment, func(t *testing.T) {
				p, fake, served, asked := newEmbedded(t, config)
				share := t.TempDir()
				if name == "archive" {
					served = filepath.Join(share, "pv1")
					fake.Serve("10.0.0.1:/exports", share)
				}
				asked.errs = errs
				write(t, served, "kept")
				_, err := recycle(t, p, releasedSpec(func(pv *v1.PersistentVolume) {
					if name == "archive" {
						pv.Spec.NFS.Path = "/exports/pv1"
					}
				}))
				if !errors.Is(err, used) {
					t.Errorf("Recycle = %v", err)
				}
				wantFiles(t, served, "kept")
				workIsGone(t, p, fake)
			})
		}
	}
}

func TestVolumeThatIsMountedForAPodIsNotEmptied(t *testing.T) {
	p, fake, served, _ := newEmbedded(t, deleting())
	write(t, served, "d/kept")
	dir := p.Host.GetPodVolumeDir("u1", PluginName, "other")
	if err := errors.Join(os.MkdirAll(dir, 0o750), fake.Mount("10.0.0.1:/export/d", dir, "nfs", nil)); err != nil {
		t.Fatal(err)
	}
	_, err := recycle(t, p, releasedSpec())
	if e, ok := errors.AsType[*StillMountedError](err); !ok || e.Target != dir || volume.IsUncertain(err) {
		t.Errorf("Recycle = %v", err)
	}
	wantFiles(t, served, "d/kept")
	if err := fake.Unmount(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := recycle(t, p, releasedSpec()); err != nil {
		t.Error(err)
	}
	wantFiles(t, served)
}

func archiving() Config {
	return Config{Recycle: RecycleConfig{Embedded: EmbeddedRecycling{
		Enabled: true, Action: RecycleArchive, ArchiveShare: "/exports", ArchiveDir: "old/archive",
	}}}
}

func TestEmbeddedRecyclerArchives(t *testing.T) {
	p, fake, _, asked := newEmbedded(t, archiving())
	share := t.TempDir()
	fake.Serve("10.0.0.1:/exports", share)
	write(t, share, "pv1/a", "pv1/.hidden", "pv1/d/b", "pv2/kept")
	spec := releasedSpec(func(pv *v1.PersistentVolume) { pv.Spec.NFS.Path = "/exports/pv1" })
	heard, err := recycle(t, p, spec)
	archive := "old/archive/pv1-" + volume.ReleaseID(spec.PersistentVolume)
	if err != nil || !heard.contain("10.0.0.1:/exports/"+archive) || !heard.contain("3 entries moved") {
		t.Errorf("%q, %v", heard, err)
	}
	wantFiles(t, share, archive+"/.hidden", archive+"/a", archive+"/d/b", "pv2/kept")
	if info, err := os.Stat(filepath.Join(share, "old")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the archive is open to others: %v, %v", info.Mode(), err)
	}
	if n := asked.asked.Load(); n != 2 {
		t.Errorf("VerifyReleased was asked %d times", n)
	}
	workIsGone(t, p, fake)

	// A volume that the server exports from elsewhere is not the directory of
	// that name.
	elsewhere := t.TempDir()
	fake.Serve("10.0.0.1:/exports/pv2", elsewhere)
	write(t, elsewhere, "kept")
	_, err = recycle(t, p, releasedSpec(func(pv *v1.PersistentVolume) { pv.Spec.NFS.Path = "/exports/pv2" }))
	if err == nil || !strings.Contains(err.Error(), "not the same directory") {
		t.Errorf("Recycle = %v", err)
	}
	wantFiles(t, elsewhere, "kept")
	workIsGone(t, p, fake)
}

func TestArchiveIsNeverSeenByTheNextClaim(t *testing.T) {
	for _, path := range []string{"/exports", "/", "/other/pv1", "/exports/old", "/exports/old/archive", "/exports/old/archive/pv0"} {
		p, fake, _, _ := newEmbedded(t, archiving())
		_, err := recycle(t, p, releasedSpec(func(pv *v1.PersistentVolume) { pv.Spec.NFS.Path = path }))
		if _, ok := errors.AsType[*volume.InvalidSpecError](err); !ok || len(fake.Calls()) > 0 {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// Whoever can write into the share does not choose where the archive is.
func TestArchiveIsNotReachedThroughLinks(t *testing.T) {
	p, fake, _, _ := newEmbedded(t, archiving())
	share := t.TempDir()
	fake.Serve("10.0.0.1:/exports", share)
	write(t, share, "pv1/kept", "pv2/x")
	if err := os.Symlink("pv2", filepath.Join(share, "old")); err != nil {
		t.Fatal(err)
	}
	_, err := recycle(t, p, releasedSpec(func(pv *v1.PersistentVolume) { pv.Spec.NFS.Path = "/exports/pv1" }))
	if err == nil {
		t.Error("a link was followed")
	}
	wantFiles(t, share, "old", "pv1/kept", "pv2/x")
}

// Nor does whoever made the directory first, or may write in it.
func TestArchiveIsNotInSomebodysDirectory(t *testing.T) {
	p, fake, _, _ := newEmbedded(t, archiving())
	share := t.TempDir()
	fake.Serve("10.0.0.1:/exports", share)
	write(t, share, "pv1/kept", "old/archive/x")
	if err := os.Chmod(filepath.Join(share, "old"), 0o777); err != nil {
		t.Fatal(err)
	}
	_, err := recycle(t, p, releasedSpec(func(pv *v1.PersistentVolume) { pv.Spec.NFS.Path = "/exports/pv1" }))
	if err == nil || !strings.Contains(err.Error(), "chmod go-w") {
		t.Errorf("Recycle = %v", err)
	}
	wantFiles(t, share, "old/archive/x", "pv1/kept")
	workIsGone(t, p, fake)
}

func TestInterruptedRecyclingSaysHowFarItCameAndIsResumed(t *testing.T) {
	for name, config := range map[string]Config{"delete": deleting(), "archive": archiving()} {
		t.Run(name, func(t *testing.T) {
			config.Recycle.Embedded.ProgressEvery = time.Nanosecond
			p, fake, _, _ := newEmbedded(t, config)
			share := t.TempDir()
			fake.Serve("10.0.0.1:/exports", share)
			served := filepath.Join(share, "pv1")
			const files = 300
			for n := range files {
				write(t, served, fmt.Sprint(n))
			}
			spec := releasedSpec(func(pv *v1.PersistentVolume) { pv.Spec.NFS.Path = "/exports/pv1" })
			ctx, cancel := context.WithCancelCause(t.Context())
			cause := errors.New("the agent stops")
			err := p.Recycle(ctx, "pv1", spec, func(_, message string) {
				if strings.Contains(message, "100 entries") {
					cancel(cause)
				}
			})
			if e, ok := errors.AsType[*volume.IncompleteError](err); !ok || e.Done != 100 || !errors.Is(err, cause) {
				t.Errorf("Recycle = %v", err)
			}
			if left, err := os.ReadDir(served); err != nil || len(left) != files-100 {
				t.Errorf("%d left, %v", len(left), err)
			}
			workIsGone(t, p, fake)
			if heard, err := recycle(t, p, spec); err != nil || !heard.contain("200 entries") {
				t.Errorf("%q, %v", heard, err)
			}
			wantFiles(t, served)
			workIsGone(t, p, fake)
		})
	}
}

// The release ends while the volume is being emptied: what a new claim puts there
// stays.
func TestRecyclingEndsWithTheRelease(t *testing.T) {
	for name, config := range map[string]Config{"delete": deleting(), "archive": archiving()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testReleaseEnds(t, config) })
		})
	}
}

func testReleaseEnds(t *testing.T, config Config) {
	config.Recycle.Embedded.ProgressEvery = -1 // no time passes by itself here
	p, fake, _, asked := newEmbedded(t, config)
	bound := errors.New("bound to a new claim")
	asked.errs = []error{nil, nil, nil, volume.NothingDone(bound)}
	share := t.TempDir()
	fake.Serve("10.0.0.1:/exports", share)
	served := filepath.Join(share, "pv1")
	const files = 100
	for n := range files {
		write(t, served, fmt.Sprint(n))
	}
	spec := releasedSpec(func(pv *v1.PersistentVolume) { pv.Spec.NFS.Path = "/exports/pv1" })
	err := p.Recycle(t.Context(), "pv1", spec, func(_, message string) {
		if strings.Contains(message, "are gone after") {
			time.Sleep(400 * time.Millisecond) // so slow is the server
		}
	})
	// Asked before the fourth and the seventh.
	incomplete, ok := errors.AsType[*volume.IncompleteError](err)
	if !ok || incomplete.Done != 6 || !errors.Is(err, bound) || !errors.Is(err, ErrNoLonger) || !volume.IsUncertain(err) {
		t.Errorf("Recycle = %v", err)
	}
	if left, err := os.ReadDir(served); err != nil || len(left) != files-6 {
		t.Errorf("%d left, %v", len(left), err)
	}
	workIsGone(t, p, fake)
}

func TestRecyclingHasItsTime(t *testing.T) {
	config := deleting()
	config.Recycle.MinimumTimeout = time.Nanosecond
	p, fake, served, _ := newEmbedded(t, config)
	write(t, served, "kept")
	_, err := recycle(t, p, releasedSpec())
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "of this size") {
		t.Errorf("Recycle = %v", err)
	}
	wantFiles(t, served, "kept")
	workIsGone(t, p, fake)
}

func TestWhatTheServerRefusesIsExplained(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want string
	}{
		{unix.EACCES, "no_root_squash"},
		{unix.EPERM, "no_root_squash"},
		{unix.EROFS, "read-write"},
		{unix.ESTALE, "try again"},
		{unix.EIO, unix.EIO.Error()},
	} {
		given := &volume.IncompleteError{Done: 7, Err: &fs.PathError{Op: "unlinkat", Path: "10.0.0.1:/export/a", Err: tc.err}}
		err := withAdvice(workExport, given)
		if !errors.Is(err, tc.err) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "7 entries") {
			t.Errorf("%v: %v", tc.err, err)
		}
	}
	if err := withAdvice(workExport, nil); err != nil {
		t.Error(err)
	}
}

// Marks, retained and archived directories of others are no claim's to empty.
func TestShareOfProvisionedVolumesIsNotEmptied(t *testing.T) {
	for name, config := range map[string]Config{"delete": deleting(), "archive": archiving()} {
		p, fake, _, _ := newEmbedded(t, config)
		share := t.TempDir()
		fake.Serve("10.0.0.1:/exports", share)
		write(t, share, "pv1/.podvol/marks/a.json", "pv1/retained/file")
		spec := releasedSpec(func(pv *v1.PersistentVolume) { pv.Spec.NFS.Path = "/exports/pv1" })
		_, err := recycle(t, p, spec)
		if e, ok := errors.AsType[*ProvisionedShareError](err); !ok || e.Source != "10.0.0.1:/exports/pv1" || volume.IsUncertain(err) {
			t.Errorf("%s: Recycle = %v", name, err)
		}
		wantFiles(t, share, "pv1/.podvol/marks/a.json", "pv1/retained/file")
		workIsGone(t, p, fake)
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
	write(t, scrub, ".podvol/marks/a.json", "retained")
	if err := run(); err == nil {
		t.Error("it empties a share that has volumes provisioned in it")
	}
	wantFiles(t, scrub, ".podvol/marks/a.json", "retained")
	if err := os.RemoveAll(scrub); err != nil {
		t.Fatal(err)
	}
	if err := run(); err == nil {
		t.Error("it succeeds without a volume")
	}
}
