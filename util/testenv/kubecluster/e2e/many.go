package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/podvol/podvol/util/testenv/kubecluster"
)

// many has many pods with six volumes each come and go on one node, while other clients
// keep the API server busy.
type many struct {
	o     options
	node  node
	plane *kubecluster.ControlPlane
}

const (
	// mostIdle is how many requests a second the agent of a node may send when nothing
	// changes for its pods.
	mostIdle   = 0.5
	idleBefore = 30 * time.Second // what has been begun ends
	idleFor    = time.Minute
	kills      = 20
	mountsEach = 4 // of the six volumes: those in memory
)

func (m many) run(ctx context.Context, w io.Writer) (err error) {
	client, err := m.plane.Client("many", "system:masters")
	if err != nil {
		return err
	}
	others := timer{client, m.plane.URL()}
	if err := others.files(ctx); err != nil {
		return err
	}
	busy := m.beginOthers(others)
	defer func() { fmt.Fprintf(w, "other clients have meanwhile sent %d requests\n", busy.end()) }()
	for _, step := range []struct {
		name string
		do   func(context.Context, io.Writer) error
	}{
		{"first start", m.first}, {"idle", m.idle}, {"agent killed", m.killed}, {"API server away", m.outage},
		{"drain", m.drain}, {"eviction", m.evict}, {"scale-down", m.scaleDown},
	} {
		begun := time.Now()
		if err := step.do(ctx, w); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Fprintf(w, "%s: passed, in %s\n", step.name, time.Since(begun).Round(time.Second))
	}
	return nil
}

// others are further clients of the API server.
type others struct {
	stop    context.CancelFunc
	running sync.WaitGroup
	sent    int
}

// beginOthers has config maps that no pod uses written and deleted, twenty times a second.
func (m many) beginOthers(t timer) *others {
	ctx, stop := context.WithCancel(context.Background())
	b := &others{stop: stop}
	b.running.Go(func() {
		again := time.NewTicker(50 * time.Millisecond)
		defer again.Stop()
		for i := 0; ; i++ {
			select {
			case <-again.C:
			case <-ctx.Done():
				return
			}
			name := fmt.Sprintf("other-%d", i/2)
			var err error
			if i%2 == 0 {
				_, err = t.ask(ctx, http.MethodPost, "configmaps", object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": name}})
			} else {
				_, err = t.ask(ctx, http.MethodDelete, "configmaps/"+name, nil)
			}
			if err == nil { // the API server may be away
				b.sent++
			}
		}
	})
	return b
}

// end returns how many requests were answered.
func (b *others) end() int {
	b.stop()
	b.running.Wait()
	return b.sent
}

func (m many) kubectl(ctx context.Context, args ...string) error {
	_, err := quietly(inCluster(ctx, m.o, "kubectl", args...))
	return err
}

// deployment runs on the one node there is.
func (m many) deployment() object {
	downward := []object{{"path": "labels", "fieldRef": object{"fieldPath": "metadata.labels"}}}
	six := map[string]object{
		"disk": {"emptyDir": object{}}, "memory": {"emptyDir": object{"medium": "Memory", "sizeLimit": "1Mi"}},
		"config": {"configMap": object{"name": "files"}}, "secret": {"secret": object{"secretName": "files"}},
		"about": {"downwardAPI": object{"items": downward}},
		"projected": {"projected": object{"sources": []object{{"configMap": object{"name": "files"}},
			{"downwardAPI": object{"items": downward}}, {"serviceAccountToken": object{"path": "token"}}}}},
	}
	container := object{"name": "pause", "image": pauseImage, "imagePullPolicy": "Never"}
	var volumes, mounts []object
	for _, name := range slices.Sorted(maps.Keys(six)) {
		volume := object{"name": name}
		maps.Copy(volume, six[name])
		volumes, mounts = append(volumes, volume), append(mounts, object{"name": name, "mountPath": "/" + name})
	}
	container["volumeMounts"] = mounts
	labels := object{"app": "many"}
	return object{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": object{"name": "many"}, "spec": object{
		"replicas": m.o.Pods, "selector": object{"matchLabels": labels}, "progressDeadlineSeconds": 3600,
		"template": object{"metadata": object{"labels": labels}, "spec": object{"automountServiceAccountToken": false, "terminationGracePeriodSeconds": 2,
			"containers": []object{container}, "volumes": volumes}},
	}}
}

func (m many) first(ctx context.Context, w io.Writer) error {
	if err := (handover{m.o, m.node}).apply(ctx, m.deployment()); err != nil {
		return err
	}
	return m.allRun(ctx, w, m.o.Pods)
}

// scale changes how many pods there are to be.
func (m many) scale(ctx context.Context, pods int) error {
	return m.kubectl(ctx, "scale", "deployment/many", fmt.Sprintf("--replicas=%d", pods))
}

// allRun waits until so many pods run, and the node has the volumes of these, once each,
// and of no others.
func (m many) allRun(ctx context.Context, w io.Writer, pods int) error {
	if err := m.kubectl(ctx, "rollout", "status", "deployment/many", "--timeout=30m"); err != nil {
		return err
	}
	dirs, mounts, tasks := 0, 0, 0
	within, cancel := context.WithTimeout(ctx, leftWithin)
	defer cancel()
	err := eventually(within, func() (bool, error) {
		out, err := m.node.shell(ctx, `echo /var/lib/kubelet/pods/*-*; awk 'index($5, "/var/lib/kubelet/pods/") == 1 { printf "%s ", $5 }' /proc/self/mountinfo; echo; ctr -n k8s.io tasks ls -q | tr '\n' ' '`)
		lines := strings.SplitN(out, "\n", 3)
		if err != nil || len(lines) < 3 {
			return false, err
		}
		dirs, mounts, tasks = len(strings.Fields(lines[0])), len(strings.Fields(lines[1])), len(strings.Fields(lines[2]))
		return dirs == pods && mounts == mountsEach*pods && tasks == 2*pods, nil
	})
	if err != nil {
		return fmt.Errorf("with %d pods there are %d directories, %d mounts, and %d containers and sandboxes: %w", pods, dirs, mounts, tasks, err)
	}
	fmt.Fprintf(w, "  %d pods run: %d directories, %d mounts, %d containers and sandboxes\n", pods, dirs, mounts, tasks)
	return nil
}

// idle counts the requests of the node while nothing of its pods changes.
func (m many) idle(ctx context.Context, w io.Writer) error {
	if err := pass(ctx, idleBefore); err != nil {
		return err
	}
	from := time.Now()
	if err := pass(ctx, idleFor); err != nil {
		return err
	}
	log, err := os.Open(auditLog)
	if err != nil {
		return err
	}
	defer log.Close()
	sent, err := requestsOf(log, "system:node:"+m.node.name(), from, from.Add(idleFor))
	if err != nil {
		return err
	}
	rate := float64(len(sent)) / idleFor.Seconds()
	fmt.Fprintf(w, "  the idle node sends %.2f requests a second\n", rate)
	if rate <= mostIdle {
		return nil
	}
	var lines []string
	for _, r := range sent {
		lines = append(lines, r.Verb+" "+r.RequestURI)
	}
	slices.Sort(lines)
	return fmt.Errorf("more than %v: %s", mostIdle, strings.Join(lines, "\n"))
}

// pass lets time pass.
func pass(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// restart kills the agent, and starts it again.
func (m many) restart(ctx context.Context) error {
	_, err := m.node.tell(ctx, order{Kill: true, Start: m.node.kind(m.o)})
	return err
}

// killed kills the agent while pods come and go, each time a bit later.
func (m many) killed(ctx context.Context, w io.Writer) error {
	for i := range kills {
		if err := m.scale(ctx, m.o.Pods-(i+1)%2*max(1, m.o.Pods/5)); err != nil {
			return err
		}
		if err := pass(ctx, time.Duration(i%7)*300*time.Millisecond); err != nil {
			return err
		}
		if err := m.restart(ctx); err != nil {
			return err
		}
		if err := pass(ctx, time.Duration(i%5)*400*time.Millisecond); err != nil { // some kills hit an agent that has just begun
			return err
		}
	}
	fmt.Fprintf(w, "  killed %d times\n", kills)
	if err := m.scale(ctx, m.o.Pods); err != nil {
		return err
	}
	return m.allRun(ctx, w, m.o.Pods)
}

// outage ends the API server while pods come and go, and the agent while it is away.
func (m many) outage(ctx context.Context, w io.Writer) error {
	if err := m.scale(ctx, m.o.Pods/2); err != nil {
		return err
	}
	m.plane.KillAPIServer()
	if err := pass(ctx, 5*time.Second); err != nil {
		return err
	}
	if err := m.restart(ctx); err != nil {
		return err
	}
	if err := pass(ctx, 10*time.Second); err != nil {
		return err
	}
	if err := m.plane.StartAPIServer(ctx); err != nil {
		return err
	}
	if err := m.allRun(ctx, w, m.o.Pods/2); err != nil {
		return err
	}
	if err := m.scale(ctx, m.o.Pods); err != nil {
		return err
	}
	return m.allRun(ctx, w, m.o.Pods)
}

func (m many) drain(ctx context.Context, w io.Writer) error {
	if err := m.kubectl(ctx, "drain", m.node.name(), "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=20m"); err != nil {
		return err
	}
	if err := m.nothingLeft(ctx, w); err != nil {
		return err
	}
	if err := m.kubectl(ctx, "uncordon", m.node.name()); err != nil {
		return err
	}
	return m.allRun(ctx, w, m.o.Pods)
}

// evict has the pods evicted by a taint.
func (m many) evict(ctx context.Context, w io.Writer) error {
	if err := m.kubectl(ctx, "taint", "node", m.node.name(), "away=now:NoExecute"); err != nil {
		return err
	}
	if err := m.nothingLeft(ctx, w); err != nil {
		return err
	}
	if err := m.kubectl(ctx, "taint", "node", m.node.name(), "away-"); err != nil {
		return err
	}
	return m.allRun(ctx, w, m.o.Pods)
}

func (m many) scaleDown(ctx context.Context, w io.Writer) error {
	if err := m.scale(ctx, 0); err != nil {
		return err
	}
	return m.nothingLeft(ctx, w)
}

// nothingLeft waits until no pod is on the node, and nothing of one.
func (m many) nothingLeft(ctx context.Context, w io.Writer) error {
	within, cancel := context.WithTimeoutCause(ctx, 20*time.Minute, errors.New("pods have not gone within twenty minutes"))
	defer cancel()
	if err := eventually(within, func() (bool, error) {
		out, err := quietly(inCluster(within, m.o, "kubectl", "get", "pods", "-o", "name", "--field-selector=spec.nodeName="+m.node.name()))
		return out == "" || strings.HasPrefix(out, "No resources"), err
	}); err != nil {
		return err
	}
	if err := m.node.awaitNothingLeft(ctx, kubeletRoot); err != nil {
		return err
	}
	fmt.Fprintln(w, "  no mount, container, directory or process of a pod is left")
	return nil
}
