package cluster_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/objects/cluster"
	"github.com/podvol/podvol/volume/volumemanager"
)

// One update of a config map that 1,000 pods use, each in two volumes, of which
// one is a tmpfs.
//
//	PODVOL_ASSERT_FIGURES=1 go test ./volume/objects/cluster -run Figures -v
func TestFiguresOfAnUpdate(t *testing.T) {
	measureUpdates(t, "on the fake", nil)
}

// The same on this kernel's tmpfs.
func TestFiguresOfAnUpdateOnTheKernel(t *testing.T) {
	nstest.Run(t, func(t *testing.T) { measureUpdates(t, "on this kernel", host.New(host.Config{})) })
}

func measureUpdates(t *testing.T, where string, mounter mount.Interface) {
	_, asserted := figures.Slack(t)
	node := newNode(t, cluster.Config{Shared: []string{}}, mounter)
	pods := 1000
	if !asserted {
		pods = 100
	}
	c := newCrowd(pods)
	inBoth := v1.VolumeProjection{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "shared"}}}
	for _, pod := range c.pods {
		pod.Spec.Volumes[2] = accessVolume(inBoth)
	}
	node.create(c.objects...)
	node.create(&v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "default"}})
	node.start()
	start := time.Now()
	node.put(c.pods...)
	node.wantMounted(c.pods...)
	t.Logf("%s: %d pods with 3 volumes each are mounted after %v", where, pods, time.Since(start).Round(time.Millisecond))

	var took, cpu []time.Duration
	for _, value := range []string{"second", "third", "fourth"} {
		all := node.refreshed(2 * len(c.pods))
		start, before := time.Now(), cpuUsed()
		node.change(configMapOf("shared", value))
		select {
		case <-all:
		case <-time.After(time.Minute):
			t.Fatal("not all volumes have the update within a minute")
		}
		took, cpu = append(took, time.Since(start)), append(cpu, cpuUsed()-before)
		for _, pod := range c.pods {
			if a, b := node.read(pod, "configmap", "shared", "key"), node.read(pod, "projected", "kube-api-access", "key"); a != value || b != value {
				t.Fatalf("pod %s has %q and %q, want %q", pod.Name, a, b, value)
			}
		}
	}
	what := fmt.Sprintf("an update of a ConfigMap is in %d volumes of %d pods, %s", 2*pods, pods, where)
	slices.Sort(took)
	slices.Sort(cpu)
	row := figures.Row{What: what, Unit: figures.Wall, Ours: took[1].Seconds(), Fastest: took[0].Seconds(), Limit: 1}
	// The same where others use the machine as well and time says what they left.
	work := figures.Row{What: what, Unit: figures.CPU, Ours: cpu[1].Seconds(), Fastest: cpu[0].Seconds(), Limit: 2}
	figures.Report(t, row, work)
	node.tearDown(c.pods...)
	node.stop()
}

// refreshed returns what is closed once so many volumes have been set up again.
func (n *node) refreshed(volumes int) <-chan struct{} {
	all := make(chan struct{})
	stop := n.Subscribe(func(status volumemanager.VolumeStatus) {
		if status.Ended != "set-up" {
			return
		}
		if status.Err != nil {
			n.t.Errorf("volume %s of pod %s: %v", status.Volume, status.Pod, status.Err)
		}
		if volumes--; volumes == 0 {
			close(all)
		}
	})
	n.t.Cleanup(stop)
	return all
}

// cpuUsed is what this process has used so far.
func cpuUsed() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
