package volumemanager_test

import (
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8smount "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume/volumemanager"
)

// TestMounterRatios has pods set up and torn down, all at once, by a manager and by the kubelet's
// method, which is a loop over the same steps without a manager. It compares the time that this
// process takes: that of the programs that mount-utils runs is not in it.
//
//	PODVOL_ASSERT_FIGURES=1 go test ./volume/volumemanager -run MounterRatios/root -v
//
// The limits are what the kubelet takes, in times of the loop.
//
//   - "in memory": a mounter of another module that mounts nothing. The kubelet took 104 µs for
//     each of 110 pods and 140 µs for each of 1,000, where the loop takes 32 to 35 µs. Down it
//     took 74 µs, and the loop 50 µs.
//   - "mount-utils": both mount by mount-utils, a tmpfs for each pod. The kubelet adds the same to
//     the loop.
//   - "mixed": pods with a secret, a configMap, an emptyDir and a hostPath. The manager has the
//     host's mounter, and the loop has mount-utils. The kubelet took 503 ms for 500 pods, where a
//     manager took 775 ms that takes 1.7 times the loop's time.
func TestMounterRatios(t *testing.T) {
	_, asserted := figures.Slack(t)
	testtool.Need(t, "mount") // which mount-utils runs
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		for disk, mountAt := range map[string]func(*testing.T, string) (mounted bool){
			"tmpfs": func(t *testing.T, dir string) bool { mounttest.MountTmpfs(t, dir); return true },
			"ext4":  figures.FreshExt4,
		} {
			t.Run(disk, func(t *testing.T) {
				dir := t.TempDir()
				if !mountAt(t, dir) {
					return
				}
				t.Setenv("TMPDIR", dir) // which says what the figures are of
				for _, c := range mounterContests() {
					c.race(t, filepath.Join(dir, c.name), asserted)
				}
			})
		}
	})
}

// mounterContest is what both sides do.
type mounterContest struct {
	name         string
	pods         int
	volumes      []v1.Volume
	ours, theirs func() mount.Interface
	up, down     float64 // the manager's time in the loop's, at most
}

func mounterContests() []mounterContest {
	inMemory := func() mount.Interface { return new(memoryMounter) }
	mountUtils := func() mount.Interface { return k8smount.NewWithoutSystemd("") }
	hosts := func() mount.Interface { return host.New(host.Config{}) }
	share, memory := []v1.Volume{nfsVolume("v", "10.0.0.1")}, []v1.Volume{emptyDirVolume("v", v1.StorageMediumMemory)}
	mixed := []v1.Volume{
		emptyDirVolume("scratch", v1.StorageMediumDefault),
		{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/"}}},
		{Name: "settings", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "settings"}}}},
		{Name: "password", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "password"}}},
	}
	return []mounterContest{
		{"110 in memory", 110, share, inMemory, inMemory, 3.2, 1.5},
		{"1000 in memory", 1000, share, inMemory, inMemory, 4, 1.5},
		{"110 by mount-utils", 110, memory, mountUtils, mountUtils, 1.2, 1.1},
		{"500 mixed", 500, mixed, hosts, mountUtils, 1.1, 1.1},
	}
}

// upAndDown is what all pods took, in rounds.
type upAndDown struct{ up, down []time.Duration }

func (u *upAndDown) add(up, down func()) {
	runtime.GC()
	start := usage().cpu
	up()
	middle := usage().cpu
	down()
	u.up, u.down = append(u.up, middle-start), append(u.down, usage().cpu-middle)
}

// race runs both sides in turn and holds the medians against the limits.
func (c mounterContest) race(t *testing.T, dir string, asserted bool) {
	rounds := 3
	if !asserted {
		c.pods, rounds = min(c.pods, 5), 1
	}
	pods := make([]*v1.Pod, c.pods)
	for i := range pods {
		pods[i] = newPod(fmt.Sprintf("p%d", i), c.volumes...)
	}
	var ours, theirs upAndDown
	for round := range rounds {
		in := testtool.MkdirAll(t, dir, fmt.Sprint(round))
		c.byManager(t, testtool.MkdirAll(t, in, "ours"), pods, &ours)
		c.byLoop(t, testtool.MkdirAll(t, in, "theirs"), pods, &theirs)
	}
	for _, phase := range []struct {
		name         string
		ours, theirs []time.Duration
		limit        float64
	}{{"up", ours.up, theirs.up, c.up}, {"down", ours.down, theirs.down, c.down}} {
		a, b := median(phase.ours), median(phase.theirs)
		of := func(d time.Duration) time.Duration { return d / time.Duration(c.pods) }
		figures.Report(t, figures.Times("pods at once, "+phase.name+", of "+c.name, figures.CPU, of(a), "kubelet (plain loop)", of(b), phase.limit))
	}
}

func (c mounterContest) byManager(t *testing.T, dir string, pods []*v1.Pod, took *upAndDown) {
	w := newWorldIn(t, dir)
	w.mounter = c.ours()
	w.add(&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "settings"}, Data: map[string]string{"a": "1", "b": "2"}},
		&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "password"}, Data: map[string][]byte{"a": []byte("1"), "b": []byte("2")}})
	manager, stop := w.start()
	defer stop()
	took.add(func() { setUpAll(t, manager, pods) }, func() { tearDownAtOnce(t, manager, pods) })
}

func (c mounterContest) byLoop(t *testing.T, dir string, pods []*v1.Pod, took *upAndDown) {
	k := kubeletMethod{tb: t, root: dir, mounter: c.theirs(), files: map[string]string{"a": "1", "b": "2"}}
	took.add(func() {
		for _, p := range pods {
			k.setUp(p)
		}
	}, func() {
		for _, p := range pods {
			k.tearDown(p)
		}
	})
}

func tearDownAtOnce(t *testing.T, manager *volumemanager.Manager, pods []*v1.Pod) {
	t.Helper()
	results := make(chan error, len(pods))
	for _, p := range pods {
		go func() { results <- manager.TearDownPod(t.Context(), p.UID) }()
	}
	for range pods {
		testtool.Must(t, <-results)
	}
}
