package volumemanager_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/volumemanager"
)

// inPhase returns the pod with a status that has this phase, and its container in
// this state.
func inPhase(pod *v1.Pod, phase v1.PodPhase, state v1.ContainerState) *v1.Pod {
	pod = pod.DeepCopy()
	pod.Status = v1.PodStatus{Phase: phase, ContainerStatuses: []v1.ContainerStatus{{Name: "c", State: state}}}
	return pod
}

var (
	terminated = v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}
	running    = v1.ContainerState{Running: &v1.ContainerStateRunning{}}
)

// A pod has ended by its phase, unless a container of it runs; without a role that
// knows of containers its status must have a word of each.
func TestWhenAPodHasEnded(t *testing.T) {
	web := newPod("web", nfsVolume("a", "10.0.0.1"))
	withoutWord := inPhase(web, v1.PodFailed, terminated)
	withoutWord.Status.ContainerStatuses = nil
	started := inPhase(web, v1.PodFailed, terminated)
	started.Spec.InitContainers = []v1.Container{{Name: "init"}}
	started.Status.InitContainerStatuses = []v1.ContainerStatus{{Name: "init", State: running}}
	for name, tc := range map[string]struct {
		pod  *v1.Pod
		role bool // and it says that the containers are gone
		gone bool
	}{
		"running":                           {pod: inPhase(web, v1.PodRunning, running)},
		"pending":                           {pod: inPhase(web, v1.PodPending, v1.ContainerState{})},
		"no phase":                          {pod: inPhase(web, "", terminated)},
		"succeeded":                         {pod: inPhase(web, v1.PodSucceeded, terminated), gone: true},
		"failed":                            {pod: inPhase(web, v1.PodFailed, terminated), gone: true},
		"failed before it began":            {pod: inPhase(web, v1.PodFailed, v1.ContainerState{Waiting: &v1.ContainerStateWaiting{}}), gone: true},
		"failed, a container runs":          {pod: inPhase(web, v1.PodFailed, running)},
		"failed, a container runs, a role":  {pod: inPhase(web, v1.PodFailed, running), role: true},
		"failed, an init container runs":    {pod: started},
		"failed, no word of containers":     {pod: withoutWord},
		"failed, no word of them, but role": {pod: withoutWord, role: true, gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				if tc.role {
					w.containers = &containers{gone: map[types.UID]bool{"uid-web": true}}
				}
				manager, stop := w.start()
				defer stop()
				mustSetUp(t, manager, web)
				must(t, manager.PutPod(tc.pod))
				time.Sleep(time.Hour)
				synctest.Wait()
				if rows := manager.Explain(); (len(rows) == 0) != tc.gone {
					t.Errorf("rows %+v", rows)
				}
				mustTearDown(t, manager, web)
				w.assertClean()
			})
		})
	}
}

// A finished job's disk is detached, its claim's data stays, and its own data as it
// is asked for; also where the manager was down when the job ended, and the pod is
// told of before the records have been read or after.
func TestFinishedJobHoldsNoDisk(t *testing.T) {
	for name, tc := range map[string]struct{ keep, restart, early bool }{
		"":                                 {},
		"its data kept":                    {keep: true},
		"over a restart":                   {restart: true},
		"over a restart, told early":       {restart: true, early: true},
		"kept, over a restart":             {keep: true, restart: true},
		"kept, over a restart, told early": {keep: true, restart: true, early: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.withAttachableDisks()
				role := &containers{gone: map[types.UID]bool{}}
				w.containers = role
				claim, pv := boundPair("results", "pv-results")
				w.add(claim, pv)
				start := func(before func(*volumemanager.Manager)) (*volumemanager.Manager, func()) {
					config := w.config()
					config.KeepEndedPodData = tc.keep
					manager, err := volumemanager.New(config)
					must(t, err)
					before(manager)
					return manager, w.run(manager)
				}
				manager, stop := start(func(*volumemanager.Manager) {})
				n := &node{manager: manager}
				job := withVolumes(diskPod("job", "a"), claimVolume("results", "results", false), emptyDirVolume("scratch", ""), configMapVolume("settings", "c"))
				w.add(configMap("c", map[string]string{"k": "v"}))
				declare(t, manager, job)
				n.report()
				n.attach("a")
				must(t, manager.WaitForMounted(t.Context(), job.UID))
				done := inPhase(job, v1.PodSucceeded, terminated)
				tell := func(m *volumemanager.Manager) { must(t, m.PutPod(done)) }
				switch {
				case tc.early:
					stop()
					manager, stop = start(tell)
				case tc.restart:
					stop()
					manager, stop = start(func(*volumemanager.Manager) {})
					tell(manager)
				default:
					tell(manager)
				}
				defer func() { stop() }()
				synctest.Wait()
				assertInUse(t, manager, "a") // its containers may run still
				role.end(job.UID)
				synctest.Wait()
				assertInUse(t, manager)
				for range 2 { // a resync changes nothing
					rows := manager.Explain()
					if tc.keep && (len(rows) != 1 || rows[0].Volume != "scratch" || rows[0].State != volumemanager.StateMounted || rows[0].Wanted) || !tc.keep && len(rows) > 0 {
						t.Errorf("left: %+v", rows)
					}
					manager.PodsComplete()
					tell(manager)
					synctest.Wait()
				}
				if _, err := manager.SetUpPod(t.Context(), done); !errors.Is(err, volumemanager.ErrPodEnded) {
					t.Errorf("set up: %v", err)
				}
				manager.DeletePod(job.UID)
				must(t, manager.WaitForUnmounted(t.Context(), job.UID))
				w.assertNoDevices()
			})
		})
	}
}

// Who waits is told; a pod that runs after all is set up again.
func TestPodEndsWhileItIsSetUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		defer stop()
		pod := newPod("web", emptyDirVolume("b", ""), configMapVolume("settings", "gone"))
		must(t, manager.PutPod(pod))
		waited := make(chan error, 1)
		go func() { waited <- manager.WaitForMounted(context.Background(), pod.UID) }()
		synctest.Wait()
		must(t, manager.PutPod(inPhase(pod, v1.PodFailed, terminated)))
		if err := <-waited; !errors.Is(err, volumemanager.ErrWithdrawn) {
			t.Errorf("err = %v", err)
		}
		synctest.Wait()
		w.assertClean()
		w.add(configMap("gone", map[string]string{"k": "v"}))
		must(t, manager.PutPod(inPhase(pod, v1.PodRunning, running)))
		must(t, manager.WaitForMounted(t.Context(), pod.UID))
		mustTearDown(t, manager, pod)
		w.assertClean()
	})
}
