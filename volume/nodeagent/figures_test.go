package nodeagent_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/volume/nodeagent"
	"github.com/podvol/podvol/volume/volumemanager"
)

// TestFiguresOfManyPods measures an agent from its start until all pods of its directory are
// mounted, by what one pod costs: pods with a volume of the node alone, and pods with a claim
// and its local volume as well. On the way it reads the manifests, binds the claims, and
// prunes nothing.
//
//	PODVOL_ASSERT_FIGURES=1 go test ./volume/nodeagent -run Figures -v
func TestFiguresOfManyPods(t *testing.T) {
	_, asserted := figures.Slack(t)
	sizes := []int{50, 200}
	if asserted {
		sizes = []int{100, 1000, 4000, 20_000}
	}
	figures.InMemory(t)
	for _, c := range []struct {
		what     string
		manifest func(dir string, i int) string
	}{{"with an emptyDir", podManifest}, {"with an emptyDir and a bound claim", claimManifest}} {
		curve := figures.Curve{What: "CPU of run-node's agent for a pod " + c.what, Of: "pods at its start", Unit: figures.CPU, Limit: 1.2}
		for _, n := range sizes {
			rounds := max(1, sizes[len(sizes)-1]/n/20)
			curve.Points = append(curve.Points, figures.Each(n, agentWith(t, n, rounds, c.manifest)))
		}
		figures.ReportCurve(t, curve)
	}
}

func podManifest(dir string, i int) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"shop","name":"p%d"},"spec":{"containers":[{"name":"c","image":"i",`+
		`"volumeMounts":[{"name":"scratch","mountPath":"/scratch"}]}],"volumes":[{"name":"scratch","emptyDir":{}}]}}`, i)
}

func claimManifest(dir string, i int) string {
	pod := strings.Replace(podManifest(dir, i), `"volumes":[`, fmt.Sprintf(`"volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"c%d"}},`, i), 1)
	pod = strings.Replace(pod, `"volumeMounts":[`, `"volumeMounts":[{"name":"data","mountPath":"/data"},`, 1)
	disk := filepath.Join(dir, fmt.Sprint("disk", i))
	if err := os.Mkdir(disk, 0o755); err != nil {
		panic(err)
	}
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":"pv%d"},"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],`+
		`"persistentVolumeReclaimPolicy":"Retain","storageClassName":"disks","claimRef":{"namespace":"shop","name":"c%d"},"local":{"path":%q},`+
		`"nodeAffinity":{"required":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"kubernetes.io/hostname","operator":"In","values":["node1"]}]}]}}}}
---
{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"namespace":"shop","name":"c%d"},"spec":{"accessModes":["ReadWriteOnce"],"storageClassName":"disks",`+
		`"volumeName":"pv%d","resources":{"requests":{"storage":"1Gi"}}}}
---
`, i, i, disk, i, i) + pod
}

// agentWith starts an agent with n pods for some rounds, each in directories of its own, and
// returns what it took until all were mounted, in the round that is the median by CPU.
func agentWith(t *testing.T, n, rounds int, manifest func(dir string, i int) string) figures.Taken {
	t.Helper()
	var taken []figures.Taken
	for range rounds {
		dir, disks := t.TempDir(), t.TempDir()
		volumes := 0
		for i := range n {
			text := manifest(disks, i)
			volumes += strings.Count(text, "mountPath")
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("p%d.yaml", i)), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		runtime.GC()
		var stop func()
		taken = append(taken, figures.Take(t, func() { stop = startAgent(t, dir, volumes) }))
		stop()
	}
	slices.SortFunc(taken, func(a, b figures.Taken) int { return cmp.Compare(a.CPU, b.CPU) })
	return taken[len(taken)/2]
}

// startAgent runs an agent, and returns once so many volumes are mounted.
func startAgent(t *testing.T, dir string, volumes int) (stop func()) {
	t.Helper()
	mounted := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	agent, err := nodeagent.Start(ctx, nodeagent.Config{Dir: dir, RootDir: filepath.Join(t.TempDir(), "root"), NodeName: "node1", Mounter: fakemount.New(),
		Status: func(v volumemanager.VolumeStatus) error {
			if v.State == volumemanager.StateMounted && v.Ended == "set-up" {
				if volumes--; volumes == 0 {
					close(mounted)
				}
			}
			return nil
		}})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	stop = func() {
		cancel()
		if err := errors.Join(<-ended, agent.Close()); err != nil {
			t.Error(err)
		}
	}
	select {
	case <-mounted:
	case err := <-ended:
		t.Fatalf("the agent ended: %v", err)
	case <-time.After(5 * time.Minute):
		t.Fatalf("volumes are not mounted after five minutes: %v", agent.Explain()[0])
	}
	return stop
}
