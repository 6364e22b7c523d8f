package attachdetach_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

// action is one thing that happens to a cluster.
type action struct {
	Do              string
	Node, Disk, Pod int
	Pause           time.Duration
}

var disksOfModel = []string{"a", "b", "shared"}

// smallNode has room for one disk.
const smallNode = "n2"

// Whatever pods, nodes, late caches, lost answers and crashes do: no disk for one node is
// ever attached to two, none is detached under a mount, and once it is quiet every disk is
// where a pod wants it and nowhere else.
func TestControllerConverges(t *testing.T) {
	one := rapid.Custom(func(t *rapid.T) action {
		return action{
			Do: rapid.SampledFrom([]string{"pod", "pod", "pod", "delete pod", "delete pod", "end pod", "hang", "wake", "power off", "power on", "fence", "delete node", "force delete",
				"restart", "crash", "lag", "catch up", "lose answer", "fail", "no attach", "attach", "no detach", "detach", "take over", "lose volume", "find volume"}).Draw(t, "do"),
			Node: rapid.IntRange(0, 2).Draw(t, "node"), Disk: rapid.IntRange(0, 2).Draw(t, "disk"), Pod: rapid.IntRange(0, 4).Draw(t, "pod"),
			Pause: rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, 1500 * time.Millisecond, time.Minute}).Draw(t, "pause"),
		}
	})
	rapid.Check(t, func(rt *rapid.T) {
		actions := rapid.SliceOfN(one, 15, 50).Draw(rt, "actions")
		var failure error
		synctest.Test(t, func(t *testing.T) { failure = play(newWorld(t, 3, disksOfModel...), actions) })
		if failure != nil {
			rt.Fatal(failure)
		}
	})
}

// model is what happens to a world.
type model struct {
	*world
	releases []func()
	dead     map[string]bool
}

func play(w *world, actions []action) error {
	m := &model{world: w, dead: make(map[string]bool)}
	w.create(csiNode(smallNode, 1))
	synctest.Wait() // all know of it
	for _, a := range actions {
		m.happen(a)
		time.Sleep(a.Pause)
	}
	for i := range 3 {
		m.happen(action{Do: "power on", Node: i})
		m.happen(action{Do: "wake", Node: i})
		m.happen(action{Do: "attach", Disk: i})
		m.happen(action{Do: "detach", Disk: i})
		m.happen(action{Do: "find volume", Disk: i})
	}
	m.catchUp()
	w.settle()
	m.happen(action{Do: "restart"}) // the last process may have died
	w.settle()
	if broken := w.backend.broken; len(broken) > 0 {
		return fmt.Errorf("what must never happen: %v", broken)
	}
	return m.quiet()
}

func (m *model) catchUp() {
	for _, release := range m.releases {
		release()
	}
	m.releases = nil
}

var errLost = errors.New("the connection broke")

func isWrite(call objectstest.Call) bool { return call.Verb != "get" && call.Verb != "list" }

func (m *model) happen(a action) {
	node, disk, pod := fmt.Sprintf("n%d", a.Node), disksOfModel[a.Disk], fmt.Sprintf("p%d", a.Pod)
	switch a.Do {
	case "pod":
		p := podOn(pod, node, disk)
		_, _ = m.store.Create(m.t.Context(), p)
	case "delete pod":
		m.deletePod(pod)
	case "end pod":
		m.change("Pod", "ops", pod, func(o metav1.Object) { o.(*v1.Pod).Status.Phase = v1.PodSucceeded })
	case "hang":
		m.agents[node].setOff(true)
		m.setReady(node, false)
	case "wake":
		if !m.dead[node] {
			m.setReady(node, true)
			m.agents[node].setOff(false)
		}
	case "power off":
		m.dead[node] = true
		m.powerOff(node)
	case "power on":
		if m.dead[node] {
			m.dead[node] = false
			m.powerOn(node)
		}
	case "fence":
		if m.dead[node] {
			m.fence(node)
		}
	case "delete node":
		if m.dead[node] {
			_ = m.store.Delete(m.t.Context(), nodeRef(node), noPreconditions)
		}
	case "force delete": // whether or not its agent has let it go
		m.deletePod(pod)
		m.letGo(pod)
	default:
		m.trouble(a, disk)
	}
}

// trouble is what happens to the controller, its API and the attacher.
func (m *model) trouble(a action, disk string) {
	switch a.Do {
	case "restart":
		m.stop()
		m.catchUp()
		m.start()
	case "crash":
		m.stop()
		m.catchUp()
		m.start()
		m.client.CrashAt(1+a.Pod+a.Disk, a.Node%2 == 0)
	case "lag":
		m.releases = append(m.releases, m.client.Hold([]string{"Pod", "Node", "VolumeAttachment"}[a.Disk]))
	case "catch up":
		m.catchUp()
	case "lose answer":
		m.client.Inject(fault.Fault[objectstest.Call]{Match: isWrite, Nth: 1 + a.Pod, After: true, Err: errors.Join(objects.ErrUncertain, errLost)})
	case "fail":
		m.client.Inject(fault.Fault[objectstest.Call]{Nth: 1 + a.Pod, Err: errLost})
	case "take over": // from a controller that does not say which volumes it attaches
		m.stop()
		m.catchUp()
		m.disown()
		m.start()
	case "lose volume":
		m.deletePV(disk)
	case "find volume":
		if _, err := m.store.Get(m.t.Context(), pvRef(disk)); err != nil {
			m.addPV(disk, disk)
		}
	case "no attach":
		m.setAttaching(disk, errors.New("no such disk"))
	case "attach":
		m.setAttaching(disk, nil)
	case "no detach":
		m.setDetaching(disk, errors.New("it is busy"))
	case "detach":
		m.setDetaching(disk, nil)
	}
}

// quiet checks that every disk is where it is wanted, as far as it can be, and nowhere else.
func (m *model) quiet() error {
	wanted := make(map[string][]string) // nodes by disk
	pods, err := objects.List[*v1.Pod](m.t.Context(), m.store, "Pod", "")
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil {
			err = errors.Join(err, fmt.Errorf("pod %s does not end", pod.Name))
		} else if disk := pod.Spec.Volumes[0].Name; pod.Status.Phase != v1.PodSucceeded && !slices.Contains(wanted[disk], pod.Spec.NodeName) {
			wanted[disk] = append(wanted[disk], pod.Spec.NodeName)
		}
	}
	var want []string
	for _, disk := range disksOfModel {
		has, nodes := m.backend.nodesOf(disk), slices.Sorted(slices.Values(wanted[disk]))
		if !m.backend.shared[disk] && len(has) == 1 && slices.Contains(nodes, has[0]) {
			nodes = has
		}
		if !slices.Contains(has, smallNode) && m.volumesOn(smallNode) == 1 {
			nodes = slices.DeleteFunc(nodes, func(node string) bool { return node == smallNode })
		}
		if !slices.Equal(has, nodes) {
			err = errors.Join(err, fmt.Errorf("%s is attached to %v, and wanted at %v", disk, has, nodes))
		}
		for _, node := range nodes {
			want = append(want, disk+"@"+node+"+")
			if !slices.Contains(m.backend.mountsOf(node), disk) {
				err = errors.Join(err, fmt.Errorf("%s is not mounted at %s", disk, node))
			}
		}
	}
	slices.Sort(want)
	if got := m.attachments(); !slices.Equal(got, want) {
		err = errors.Join(err, fmt.Errorf("attachments %v, want %v", got, want))
	}
	return errors.Join(err, m.lists())
}

// volumesOn is how many disks a node has.
func (m *model) volumesOn(node string) (n int) {
	for _, disk := range disksOfModel {
		if slices.Contains(m.backend.nodesOf(disk), node) {
			n++
		}
	}
	return n
}

// lists checks what nodes are told.
func (m *model) lists() (err error) {
	for node := range maps.Keys(m.agents) {
		var told []string
		for _, a := range m.node(node).Status.VolumesAttached {
			told = append(told, string(a.Name))
		}
		var has []string
		for _, disk := range disksOfModel {
			if slices.Contains(m.backend.nodesOf(disk), node) {
				has = append(has, string(uniqueName(disk)))
			}
		}
		if !slices.Equal(told, has) {
			err = errors.Join(err, fmt.Errorf("node %s is told of %v and has %v", node, told, has))
		}
	}
	return err
}
