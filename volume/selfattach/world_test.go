package selfattach_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/selfattach"
)

const pluginName = "example.com/lun"

func unique(lun string) v1.UniqueVolumeName { return v1.UniqueVolumeName(pluginName + "/" + lun) }

func specOf(lun string) *volume.Spec {
	return &volume.Spec{PersistentVolume: &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: lun},
		Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: pluginName, VolumeHandle: lun}}}}}
}

// cabinet has LUNs, and attaches them to one machine. It checks what callers do.
type cabinet struct {
	volume.VolumePlugin
	t *testing.T

	mu       sync.Mutex
	attached map[string]bool
	calls    []string
	nodes    []*machineNode
	// strike is called at each call, before its effect and after it; an error ends the call.
	strike func(ctx context.Context, call string, after bool) error
}

func (c *cabinet) GetPluginName() string { return pluginName }

func (c *cabinet) do(ctx context.Context, what string, spec *volume.Spec, now bool) error {
	lun := spec.PersistentVolume.Name
	c.mu.Lock()
	strike := c.strike
	c.calls = append(c.calls, what+" "+lun)
	c.mu.Unlock()
	if strike != nil {
		if err := strike(ctx, what+" "+lun, false); err != nil {
			return err
		}
	}
	recorded := false
	for _, n := range c.nodes {
		recorded = recorded || n.hasRecord(lun)
		if n.hasMounted(lun) && !now {
			c.t.Errorf("%s is detached while it is mounted", lun)
		}
	}
	if !recorded {
		c.t.Errorf("%s %s without a record", what, lun)
	}
	c.mu.Lock()
	c.attached[lun] = now
	if !now {
		delete(c.attached, lun)
	}
	c.mu.Unlock()
	if strike != nil {
		return strike(ctx, what+" "+lun, true)
	}
	return nil
}

func (c *cabinet) AttachSpec(ctx context.Context, spec *volume.Spec, node types.NodeName) (volume.Attachment, error) {
	err := c.do(ctx, "attach", spec, true)
	return volume.Attachment{DevicePath: "/dev/" + spec.PersistentVolume.Name, Metadata: map[string]string{"node": string(node)}}, err
}

func (c *cabinet) DetachSpec(ctx context.Context, spec *volume.Spec, _ types.NodeName) error {
	return c.do(ctx, "detach", spec, false)
}

func (c *cabinet) log() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}

func (c *cabinet) has(lun string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.attached[lun]
}

func (c *cabinet) strikes(f func(ctx context.Context, call string, after bool) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.strike = f
}

// machineNode is a volume manager with the rules of the real one: a volume is mounted when it
// is wanted, and was reported in use and attached since it was wanted.
type machineNode struct {
	t       *testing.T
	dir     string
	cabinet *cabinet

	mu       sync.Mutex
	wanted   map[string]bool
	mounted  map[string]bool
	left     map[string]bool // staged by an earlier owner
	attached map[v1.UniqueVolumeName]string
	reported map[v1.UniqueVolumeName]bool
	tell     func(struct{})

	attacher *selfattach.Attacher
	lines    strings.Builder // logged
	stop     func() error
}

func (n *machineNode) WaitForRecovery(context.Context) error { return nil }

func (n *machineNode) VolumesInUse() []v1.UniqueVolumeName {
	n.mu.Lock()
	defer n.mu.Unlock()
	used := maps.Clone(n.wanted)
	maps.Copy(used, n.mounted)
	maps.Copy(used, n.left)
	names := []v1.UniqueVolumeName{}
	for lun := range used {
		names = append(names, unique(lun))
	}
	maps.DeleteFunc(n.reported, func(name v1.UniqueVolumeName, _ bool) bool { return !slices.Contains(names, name) })
	return names
}

func (n *machineNode) AttachableSpec(name v1.UniqueVolumeName) *volume.Spec {
	lun := strings.TrimPrefix(string(name), pluginName+"/")
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.wanted[lun] || n.mounted[lun] {
		return specOf(lun)
	}
	return nil
}

func (n *machineNode) ReportedInUse(names []v1.UniqueVolumeName) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reported = make(map[v1.UniqueVolumeName]bool)
	for _, name := range names {
		n.reported[name] = true
	}
	n.mount()
}

func (n *machineNode) SetVolumesAttached(attached []v1.AttachedVolume) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.attached = make(map[v1.UniqueVolumeName]string)
	for _, a := range attached {
		n.attached[a.Name] = a.DevicePath
	}
	n.mount()
}

func (n *machineNode) mount() {
	for lun := range n.wanted {
		device, attached := n.attached[unique(lun)]
		if !attached || !n.reported[unique(lun)] || n.mounted[lun] {
			continue
		}
		if !n.cabinet.has(lun) || device != "/dev/"+lun {
			n.t.Errorf("%s is mounted from %q, attached: %v", lun, device, n.cabinet.has(lun))
		}
		n.mounted[lun] = true
	}
}

func (n *machineNode) Subscribe(f func(struct{})) func() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tell = f
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.tell = nil
	}
}

func (n *machineNode) change(f func()) {
	n.mu.Lock()
	f()
	tell := n.tell
	n.mu.Unlock()
	if tell != nil {
		tell(struct{}{})
	}
}

func (n *machineNode) want(lun string) { n.change(func() { n.wanted[lun] = true }) }

// unwant ends a pod, whose volume is unmounted.
func (n *machineNode) unwant(lun string) {
	n.change(func() { delete(n.wanted, lun); delete(n.mounted, lun) })
}

func (n *machineNode) hasMounted(lun string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mounted[lun]
}

func (n *machineNode) hasRecord(lun string) bool {
	_, err := os.Stat(selfattach.RecordPath(n.dir, unique(lun)))
	return err == nil
}

func (n *machineNode) config() selfattach.Config {
	return selfattach.Config{Dir: n.dir, SharedDir: filepath.Join(filepath.Dir(filepath.Dir(n.dir)), "shared"), NodeName: "n1", Plugins: []volume.VolumePlugin{n.cabinet},
		Logger: slog.New(slog.NewTextHandler(&n.lines, nil))}
}

func (n *machineNode) start() { n.startAt("this boot") }

func (n *machineNode) startAt(boot string) {
	n.t.Helper()
	a, err := selfattach.OpenAt(n.config(), boot)
	if err != nil {
		n.t.Fatal(err)
	}
	n.run(a)
}

func (n *machineNode) run(a *selfattach.Attacher) {
	n.attached, n.reported = nil, nil
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- selfattach.Run(ctx, a, n) }()
	n.attacher = a
	n.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	synctest.Wait()
}

// kill ends the attacher as SIGKILL does: what it writes from now on is undone.
func (n *machineNode) kill() (restart func()) {
	records, shared := copyOf(n.t, n.dir), copyOf(n.t, n.config().SharedDir)
	return func() {
		if err := n.stop(); err != nil {
			n.t.Error(err)
		}
		for from, to := range map[string]string{records: n.dir, shared: n.config().SharedDir} {
			if err := os.RemoveAll(to); err != nil {
				n.t.Fatal(err)
			}
			if err := os.CopyFS(to, os.DirFS(from)); err != nil {
				n.t.Fatal(err)
			}
		}
		n.start()
	}
}

func copyOf(t *testing.T, dir string) string {
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// newNodes returns nodes of one machine and one cabinet, which run until the test ends.
func newNodes(t *testing.T, count int) (*cabinet, []*machineNode) {
	t.Helper()
	top := t.TempDir()
	c := &cabinet{t: t, attached: make(map[string]bool)}
	for i := range count {
		n := &machineNode{t: t, dir: filepath.Join(top, fmt.Sprint("root", i), "attached"), cabinet: c, wanted: make(map[string]bool), mounted: make(map[string]bool), left: make(map[string]bool)}
		c.nodes = append(c.nodes, n)
		n.start()
		t.Cleanup(func() {
			if err := n.stop(); err != nil {
				t.Error(err)
			}
		})
	}
	return c, c.nodes
}

// assertGone fails if anything is attached, or recorded, or told to others.
func (c *cabinet) assertGone() {
	c.t.Helper()
	synctest.Wait() // until who has detached has let go
	if len(c.attached) > 0 {
		c.t.Errorf("left attached: %v", c.attached)
	}
	for _, n := range c.nodes {
		for _, dir := range []string{n.dir, n.config().SharedDir} {
			if left, err := os.ReadDir(dir); err == nil && (len(left) > 0 || dir != n.dir) {
				c.t.Errorf("%s is there, with %v", dir, left)
			}
		}
	}
}
