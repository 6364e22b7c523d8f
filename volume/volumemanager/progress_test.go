package volumemanager_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fsgroup"
	"github.com/podvol/podvol/volume/volumemanager"
)

// slow is a plugin whose set-up takes so many seconds and says so in each.
type slow struct {
	stubborn
	doing   string
	seconds int64
}

func (p slow) NewMounter(*volume.Spec, *v1.Pod) (volume.Mounter, error) {
	return slowVolume{slow: p}, nil
}

type slowVolume struct {
	stubbornVolume
	slow slow
}

func (v slowVolume) SetUp(_ context.Context, args volume.MounterArgs) error {
	for done := range v.slow.seconds {
		args.Progress(volume.Progress{Doing: v.slow.doing, Done: 1000 * done})
		time.Sleep(time.Second)
	}
	return nil
}

func slowPod() *v1.Pod {
	return newPod("web", v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{GitRepo: &v1.GitRepoVolumeSource{Repository: "r"}}})
}

func TestProgressIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.plugins = func() []volume.VolumePlugin { return []volume.VolumePlugin{slow{doing: "unpacking files", seconds: 5}} }
		manager, stop := w.start()
		defer stop()
		var told []string
		defer manager.Subscribe(func(s volumemanager.VolumeStatus) {
			if s.Progress != (volume.Progress{}) {
				told = append(told, s.Progress.String())
			}
		})()
		pod := slowPod()
		if err := manager.PutPod(pod); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2500 * time.Millisecond)
		want := volume.Progress{Doing: "unpacking files", Done: 2000}
		if got := manager.Explain(); len(got) != 1 || got[0].Progress != want {
			t.Errorf("Explain = %+v, want progress %v", got, want)
		}
		if err := manager.WaitForMounted(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
		if got := manager.Explain(); got[0].Progress != (volume.Progress{}) {
			t.Errorf("once it is mounted, its progress is %v", got[0].Progress)
		}
		if got, want := strings.Join(told, ", "), "unpacking files, unpacking files: 1000, unpacking files: 2000, unpacking files: 3000, unpacking files: 4000"; got != want {
			t.Errorf("subscribers were told %q, want %q", got, want)
		}
		if events := w.events.all(); len(events) != 0 {
			t.Errorf("events about what did not take long: %q", events)
		}
	})
}

func TestProgressEvents(t *testing.T) {
	for name, test := range map[string]struct {
		doing  string
		policy v1.PodFSGroupChangePolicy
		want   []string // after 10 s, 1 min 10 s, 2 min 10 s
	}{
		"ownership": {fsgroup.Doing, v1.FSGroupChangeAlways, []string{
			`web Warning VolumePermissionChangeInProgress Setting volume ownership for volume "v", processed 9000 files in 10s. It is taking longer than expected, consider fsGroupChangePolicy OnRootMismatch.`,
			`web Warning VolumePermissionChangeInProgress Setting volume ownership for volume "v", processed 69000 files in 1m10s.`,
			`web Warning VolumePermissionChangeInProgress Setting volume ownership for volume "v", processed 129000 files in 2m10s.`,
		}},
		"ownership already on mismatch only": {fsgroup.Doing, v1.FSGroupChangeOnRootMismatch, []string{
			`web Warning VolumePermissionChangeInProgress Setting volume ownership for volume "v", processed 9000 files in 10s.`,
			`web Warning VolumePermissionChangeInProgress Setting volume ownership for volume "v", processed 69000 files in 1m10s.`,
			`web Warning VolumePermissionChangeInProgress Setting volume ownership for volume "v", processed 129000 files in 2m10s.`,
		}},
		"something else": {"unpacking 100% of it", v1.FSGroupChangeAlways, []string{
			`web Warning VolumeSetUpInProgress Setting up volume "v", for 10s so far: unpacking 100% of it: 9000.`,
			`web Warning VolumeSetUpInProgress Setting up volume "v", for 1m10s so far: unpacking 100% of it: 69000.`,
			`web Warning VolumeSetUpInProgress Setting up volume "v", for 2m10s so far: unpacking 100% of it: 129000.`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.plugins = func() []volume.VolumePlugin { return []volume.VolumePlugin{slow{doing: test.doing, seconds: 150}} }
				w.setUpTimeout = time.Hour
				manager, stop := w.start()
				defer stop()
				pod := slowPod()
				pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroupChangePolicy: &test.policy}
				if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour)
				got := w.events.all()
				for i, event := range got { // the last report may come just before or just after
					got[i] = strings.NewReplacer(" 10000 ", " 9000 ", " 70000 ", " 69000 ", " 130000 ", " 129000 ",
						": 10000.", ": 9000.", ": 70000.", ": 69000.", ": 130000.", ": 129000.").Replace(event)
				}
				if diff := cmpDiff(test.want, got); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// walks is a plugin whose set-up makes progress for so many seconds, which it
// then reports again and again.
type walks struct {
	stubborn
	seconds int64
	stalls  bool
}

func (p walks) NewMounter(*volume.Spec, *v1.Pod) (volume.Mounter, error) {
	return walkedVolume{walks: p}, nil
}

type walkedVolume struct {
	stubbornVolume
	walks walks
}

func (v walkedVolume) SetUp(ctx context.Context, args volume.MounterArgs) error {
	for done := int64(0); v.walks.stalls || done < v.walks.seconds; done++ {
		args.Progress(volume.Progress{Doing: fsgroup.Doing, Done: min(done, v.walks.seconds)})
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
	return nil
}

// What makes progress is not given up, nor said to have failed; what only says
// the same again is.
func TestTimeRunsWithoutProgressOnly(t *testing.T) {
	for name, stalls := range map[string]bool{"it makes progress": false, "it stalls": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.plugins = func() []volume.VolumePlugin { return []volume.VolumePlugin{walks{seconds: 100, stalls: stalls}} }
				w.setUpTimeout = 30 * time.Second
				manager, stop := w.start()
				defer stop()
				if err := manager.PutPod(slowPod()); err != nil {
					t.Fatal(err)
				}
				failed := func() bool { return strings.Contains(strings.Join(w.events.all(), "\n"), "FailedMount") }
				time.Sleep(99 * time.Second)
				if failed() {
					t.Errorf("events = %q", w.events.all())
				}
				time.Sleep(32 * time.Second)
				row := manager.Explain()[0]
				if failed() != stalls || errors.Is(row.Err, context.DeadlineExceeded) != stalls || (row.State == volumemanager.StateMounted) == stalls {
					t.Errorf("events = %q, the volume is %v, %v", w.events.all(), row.State, row.Err)
				}
			})
		})
	}
}

// A share's files cannot be given to the pod's fsGroup, which the pod is told
// once.
func TestWhatIsNotDoneIsExplained(t *testing.T) {
	w := newWorld(t)
	manager, stop := w.start()
	pod := newPod("web", nfsVolume("share", "10.0.0.1"), emptyDirVolume("scratch", ""),
		v1.Volume{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: t.TempDir()}}})
	// The same goes for a limit that is none.
	withVolumes(pod, limited("disk", "", "1Gi"), limited("memory", v1.StorageMediumMemory, "1Gi"), limited("unlimited", "", "0"))
	group := int64(os.Getegid())
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
	mustSetUp(t, manager, pod)
	mustSetUp(t, manager, pod)
	stop()
	again, _ := w.start()
	mustSetUp(t, again, pod)
	got := w.events.all()
	slices.Sort(got)
	if len(got) != 2 || !strings.HasPrefix(got[0], "web Normal FSGroupNotApplied fsGroup ") ||
		!strings.Contains(got[0], `"share" (kubernetes.io/nfs)`) || !strings.Contains(got[0], "supplementalGroups") {
		t.Errorf("events = %q, want one about the share", got)
	}
	if !strings.HasPrefix(got[1], "web Normal SizeLimitNotEnforced sizeLimit 1Gi of volume \"disk\"") {
		t.Errorf("events = %q, want one about the limit", got)
	}
}

func limited(name string, medium v1.StorageMedium, limit string) v1.Volume {
	v := emptyDirVolume(name, medium)
	v.EmptyDir.SizeLimit = new(resource.MustParse(limit))
	return v
}
