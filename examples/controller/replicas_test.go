package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/apiserver"
	"github.com/podvol/podvol/util/testenv/kubecluster"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// sidecarsVar names the directory that testdata/csi/drivers/build sidecars prints.
const sidecarsVar = "PODVOL_CSI_SIDECARS"

// sets are the StatefulSets. A container of a machine may not grow ext4 while it is mounted, and
// the log of xfs is large: few have it, and grow.
var sets = []set{{name: "kept", fsType: "ext4", replicas: 90, size: "64Mi"}, {name: "grown", fsType: "xfs", replicas: 10, size: "320Mi", larger: "640Mi"}}

// replicas are the pods of all sets.
var replicas = labels.SelectorFromSet(labels.Set{"app": "replicas"})

type set struct {
	name, fsType string
	replicas     int
	size, larger string
}

const patient = 6 * time.Minute // for a hundred volumes, on a machine with more to do

// A hundred replicas move from one node to another with their disks, grow, and go, in a cluster
// with Kubernetes' controllers, whose attach/detach controller is podvol's, and with the
// sidecars of CSI drivers. The process that attaches is killed with SIGKILL amid the move. The
// driver notices a disk of two nodes, and one that is detached while a node has it mounted.
func TestReplicasMoveToAnotherNode(t *testing.T) {
	sidecars := os.Getenv(sidecarsVar)
	if sidecars == "" {
		t.Logf("not run: set %s to what testdata/csi/drivers/build sidecars prints", sidecarsVar)
		return
	}
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		dir := t.TempDir()
		policy := `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived", "ResponseStarted"], "rules": [{"level": "Metadata"}]}`
		if err := os.WriteFile(filepath.Join(dir, "policy"), []byte(policy), 0o600); err != nil {
			t.Fatal(err)
		}
		config := apiserver.Config{Controllers: true, ManagerFlags: []string{"--controllers=*,-persistentvolume-attach-detach-controller"},
			Flags: []string{"--audit-policy-file=" + filepath.Join(dir, "policy"), "--audit-log-path=" + filepath.Join(dir, "audit.log")}}
		apiserver.Run(t, config, func(t *testing.T, s *apiserver.Server) {
			m := newMoving(t, s, dir, sets)
			m.begin(sidecars)
			m.start = attaching(t, s, m.admin)
			m.attaching = m.start()
			m.fill()
			m.move()
			m.grow()
			m.end()
		})
	})
}

// moving is a cluster with two nodes.
type moving struct {
	t      *testing.T
	server *apiserver.Server
	admin  kubernetes.Interface
	dir    string
	sets   []set
	driver *csitest.Driver
	nodes  map[string]*agent
	// program is that of the nodes, sockets has the driver's for each.
	program, sockets string

	pods        corelisters.PodNamespaceLister
	claims      corelisters.PersistentVolumeClaimNamespaceLister
	volumes     corelisters.PersistentVolumeLister
	attachments storagelisters.VolumeAttachmentLister
	start       func() *process // of what attaches
	attaching   *process
}

func newMoving(t *testing.T, s *apiserver.Server, dir string, sets []set) *moving {
	t.Helper()
	m := &moving{t: t, server: s, admin: clientsetOf(t, s.Admin(t)), dir: dir, sets: sets, nodes: make(map[string]*agent)}
	m.follow()
	return m
}

// inAll is how many replicas there are.
func (m *moving) inAll() (n int) {
	for _, s := range m.sets {
		n += s.replicas
	}
	return n
}

// agent is a node: examples/virtualkubelet, whose containers are processes.
type agent struct {
	process   *kubecluster.Process
	dir       string
	registrar *csitest.Registrar
}

func (m *moving) must(errs ...error) {
	m.t.Helper()
	if err := errors.Join(errs...); err != nil {
		m.t.Fatal(err)
	}
}

// follow keeps copies of the objects that the test looks at.
func (m *moving) follow() {
	factory := informers.NewSharedInformerFactory(m.admin, 0)
	m.pods, m.claims = factory.Core().V1().Pods().Lister().Pods("ops"), factory.Core().V1().PersistentVolumeClaims().Lister().PersistentVolumeClaims("ops")
	m.volumes, m.attachments = factory.Core().V1().PersistentVolumes().Lister(), factory.Storage().V1().VolumeAttachments().Lister()
	stop := make(chan struct{})
	factory.Start(stop)
	m.t.Cleanup(func() {
		close(stop)
		factory.Shutdown()
	})
	factory.WaitForCacheSync(m.t.Context().Done())
}

// begin starts the driver with its sidecars, and a first node.
func (m *moving) begin(sidecars string) {
	m.t.Helper()
	ctx, create := m.t.Context(), metav1.CreateOptions{}
	_, err := m.admin.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ops"}}, create)
	_, driverErr := m.admin.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: csitest.DefaultName}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(true)}}, create)
	m.must(err, driverErr)
	m.sockets = csitest.SocketDir(m.t)
	m.driver = csitest.New(csitest.Config{Dir: filepath.Join(m.dir, "disks"), NodeID: "id-of-one", Disk: csitest.Loop,
		Capabilities: csitest.Capabilities{Controller: true, Attach: true, Stage: true, Expand: true}})
	m.t.Cleanup(func() {
		if err := m.driver.Close(); err != nil {
			m.t.Error(err)
		}
	})
	m.must(m.driver.Start(filepath.Join(m.sockets, "one")), m.driver.StartNode("id-of-two", filepath.Join(m.sockets, "two")))
	for _, name := range []string{"csi-provisioner", "csi-attacher", "csi-resizer"} {
		m.run(name, filepath.Join(sidecars, name), m.dir, []string{name, "system:masters"},
			"--csi-address="+filepath.Join(m.sockets, "one"), "--kube-api-qps=200", "--kube-api-burst=400", "--timeout=1m")
	}
	m.program = filepath.Join(m.dir, "virtualkubelet")
	if said, err := exec.CommandContext(ctx, "go", "build", "-o", m.program, "../virtualkubelet").CombinedOutput(); err != nil {
		m.t.Fatalf("build the node: %v\n%s", err, said)
	}
	m.startNode("one")
}

// fill has all replicas run on the first node, and starts a second one.
func (m *moving) fill() {
	m.t.Helper()
	began := time.Now()
	for _, set := range m.sets {
		m.create(set)
	}
	within(m.t, patient, "all replicas run on the first node", func() bool { return m.readyOn("one") == m.inAll() })
	m.t.Logf("%d disks were made, attached and formatted, and their pods started, after %s", m.inAll(), since(began))
	m.look("one")
	m.startNode("two")
}

// run starts a program, and shows what it has said if the test fails.
func (m *moving) run(name, path, dir string, user []string, args ...string) *kubecluster.Process {
	m.t.Helper()
	kubeconfig := filepath.Join(m.dir, name+".kubeconfig")
	m.must(os.WriteFile(kubeconfig, m.server.Kubeconfig(m.t, user[0], user[1:]...), 0o600))
	p := &kubecluster.Process{Name: name, Path: path, Dir: dir, Args: append(args, "--kubeconfig="+kubeconfig)}
	m.must(p.Start())
	m.t.Cleanup(func() {
		p.Kill()
		if m.t.Failed() {
			m.t.Logf("the last lines of %s:\n%s", name, p.Tail())
		}
	})
	return p
}

// startNode starts a node, and registers the driver there.
func (m *moving) startNode(name string) {
	m.t.Helper()
	a := &agent{dir: csitest.SocketDir(m.t), registrar: &csitest.Registrar{Name: csitest.DefaultName, Endpoint: filepath.Join(m.sockets, name)}}
	registry := filepath.Join(a.dir, "volumes", "plugins_registry")
	m.must(os.MkdirAll(registry, 0o750), a.registrar.Start(filepath.Join(registry, "disk")))
	m.t.Cleanup(a.registrar.Kill)
	a.process = m.run("node-"+name, m.program, m.dir, []string{"system:node:" + name, "system:nodes"}, "--nodename="+name, "--dir="+a.dir, "--csi", "--no-taint")
	m.nodes[name] = a
}

// create makes a StatefulSet whose pods write to their volumes who they are and where.
func (m *moving) create(s set) {
	m.t.Helper()
	ctx, create := m.t.Context(), metav1.CreateOptions{}
	_, err := m.admin.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: s.name}, Provisioner: csitest.DefaultName,
		AllowVolumeExpansion: new(true), Parameters: map[string]string{"csi.storage.k8s.io/fstype": s.fsType}}, create)
	from := func(path string) *v1.EnvVarSource {
		return &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: path}}
	}
	app := map[string]string{"app": "replicas", "set": s.name}
	pod := v1.PodSpec{AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: new(int64(10)), Containers: []v1.Container{{
		Name: "main", Image: "none", Command: []string{"/bin/sh", "-c", `echo "$POD on $NODE" >>/data/log && trap exit TERM && while :; do sleep 3600 & wait; done`},
		Env:          []v1.EnvVar{{Name: "POD", ValueFrom: from("metadata.name")}, {Name: "NODE", ValueFrom: from("spec.nodeName")}},
		VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}}}}}
	claim := v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: v1.PersistentVolumeClaimSpec{StorageClassName: &s.name,
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(s.size)}}}}
	_, setErr := m.admin.AppsV1().StatefulSets("ops").Create(ctx, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: s.name}, Spec: appsv1.StatefulSetSpec{
		Replicas: new(int32(s.replicas)), PodManagementPolicy: appsv1.ParallelPodManagement, Selector: &metav1.LabelSelector{MatchLabels: app},
		Template:             v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: app}, Spec: pod},
		VolumeClaimTemplates: []v1.PersistentVolumeClaim{claim}}}, create)
	m.must(err, setErr)
}

func since(began time.Time) time.Duration { return time.Since(began).Round(time.Millisecond) }

// readyOn is how many pods run on a node.
func (m *moving) readyOn(node string) (n int) {
	all, err := m.pods.List(labels.Everything())
	m.must(err)
	for _, pod := range all {
		for _, c := range pod.Status.Conditions {
			if c.Type == v1.PodReady && c.Status == v1.ConditionTrue && pod.Spec.NodeName == node && pod.DeletionTimestamp == nil {
				n++
			}
		}
	}
	return n
}

// mounted is where a node has the volume of a pod.
func (m *moving) mounted(node string, pod *v1.Pod) string {
	m.t.Helper()
	claim, err := m.claims.Get("data-" + pod.Name)
	m.must(err)
	return filepath.Join(m.nodes[node].dir, "volumes", "pods", string(pod.UID), "volumes", "kubernetes.io~csi", claim.Spec.VolumeName, "mount")
}

// look compares what all replicas have written, on these nodes one after the other.
func (m *moving) look(nodes ...string) {
	m.t.Helper()
	all, err := m.pods.List(replicas)
	m.must(err)
	for _, pod := range all {
		m.lookAt(pod, nodes...)
	}
	if broken := m.violations(); len(broken) > 0 {
		m.t.Fatalf("the driver was told to break its rules: %q", broken)
	}
}

// lookAt does it for one, which may be ready before its shell has written.
func (m *moving) lookAt(pod *v1.Pod, nodes ...string) {
	m.t.Helper()
	var want strings.Builder
	for _, node := range nodes {
		fmt.Fprintf(&want, "%s on %s\n", pod.Name, node)
	}
	path := filepath.Join(m.mounted(nodes[len(nodes)-1], pod), "log")
	until(m.t, fmt.Sprintf("%s has %q", path, want.String()), func() bool {
		got, err := os.ReadFile(path)
		return err == nil && string(got) == want.String()
	})
}

// violations are the rules that were broken. The external-attacher, whose copy of a
// VolumeAttachment is late, repeats its call for a disk that is attached: it may do so beside the
// node's calls.
func (m *moving) violations() []string {
	return slices.DeleteFunc(m.driver.Violations(), func(v string) bool {
		call, other, both := strings.Cut(v, " while ")
		attach, node := "ControllerPublishVolume ", "Node"
		return both && (strings.HasPrefix(call, attach) && strings.HasPrefix(other, node) || strings.HasPrefix(call, node) && strings.HasPrefix(other, attach))
	})
}

// move drains the first node.
func (m *moving) move() {
	m.t.Helper()
	ctx := m.t.Context()
	m.cordon("one", true)
	began := time.Now()
	m.must(m.admin.CoreV1().Pods("ops").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app=replicas"}))
	within(m.t, patient, "a part of the replicas runs on the second node", func() bool { return m.readyOn("two") >= m.inAll()/4 })
	moved, first := m.readyOn("two"), since(began)
	m.must(m.attaching.cmd.Process.Kill())
	m.attaching = m.start()
	within(m.t, patient, "all replicas run on the second node", func() bool { return m.readyOn("two") == m.inAll() })
	ended := time.Now()
	m.t.Logf("%d of %d replicas ran on the second node after %s, when what attaches was killed, and all after %s", moved, m.inAll(), first, since(began))
	for user, n := range m.requests(began, ended) {
		m.t.Logf("requests for each volume that moved: %5.2f of %s", float64(n)/float64(m.inAll()), user)
	}
	m.look("one", "two")
}

// cordon says whether a node takes no further pods, once it is there.
func (m *moving) cordon(node string, closed bool) {
	m.t.Helper()
	until(m.t, "there is node "+node, func() bool {
		_, err := m.admin.CoreV1().Nodes().Patch(m.t.Context(), node, types.StrategicMergePatchType, fmt.Appendf(nil, `{"spec": {"unschedulable": %t}}`, closed), metav1.PatchOptions{})
		if !apierrors.IsNotFound(err) {
			m.must(err)
		}
		return err == nil
	})
}

// requests are those that the API server has answered, by users.
func (m *moving) requests(from, to time.Time) map[string]int {
	m.t.Helper()
	log, err := os.ReadFile(filepath.Join(m.dir, "audit.log"))
	m.must(err)
	all := make(map[string]int)
	for line := range bytes.Lines(log) {
		var r struct {
			RequestReceivedTimestamp time.Time
			User                     struct{ Username string }
		}
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // it is still being written
		}
		m.must(json.Unmarshal(line, &r))
		if at, user := r.RequestReceivedTimestamp, r.User.Username; !at.Before(from) && at.Before(to) && (user == attacher || !strings.HasPrefix(user, "system:serviceaccount")) {
			all[user]++
		}
	}
	return all
}

// grows reports whether a claim's condition is one of growth that goes on.
func grows(c v1.PersistentVolumeClaimCondition) bool {
	return strings.Contains(string(c.Type), "Resiz") && c.Status == v1.ConditionTrue
}

// grow has the volumes of a set grow while they are mounted.
func (m *moving) grow() {
	m.t.Helper()
	for _, s := range m.sets {
		if s.larger == "" {
			continue
		}
		began, size := time.Now(), resource.MustParse(s.larger)
		for i := range s.replicas {
			_, err := m.admin.CoreV1().PersistentVolumeClaims("ops").Patch(m.t.Context(), fmt.Sprintf("data-%s-%d", s.name, i), types.MergePatchType,
				fmt.Appendf(nil, `{"spec": {"resources": {"requests": {"storage": %q}}}}`, s.larger), metav1.PatchOptions{})
			m.must(err)
		}
		within(m.t, patient, "the claims have grown", func() bool {
			for i := range s.replicas {
				claim, err := m.claims.Get(fmt.Sprintf("data-%s-%d", s.name, i))
				m.must(err)
				if has := claim.Status.Capacity[v1.ResourceStorage]; has.Cmp(size) != 0 || slices.ContainsFunc(claim.Status.Conditions, grows) {
					return false
				}
			}
			return true
		})
		m.t.Logf("%d volumes have grown after %s", s.replicas, since(began))
		for i := range s.replicas {
			pod, err := m.pods.Get(fmt.Sprintf("%s-%d", s.name, i))
			m.must(err)
			var file unix.Statfs_t
			m.must(unix.Statfs(m.mounted("two", pod), &file))
			if old := resource.MustParse(s.size); int64(file.Blocks)*file.Bsize <= old.Value() {
				m.t.Errorf("the file system of %s has %d bytes", pod.Name, int64(file.Blocks)*file.Bsize)
			}
		}
	}
	m.look("one", "two")
}

// end deletes everything, and looks for what is left.
func (m *moving) end() {
	m.t.Helper()
	ctx, began := m.t.Context(), time.Now()
	for _, s := range m.sets {
		_, err := m.admin.AppsV1().StatefulSets("ops").Patch(ctx, s.name, types.MergePatchType, []byte(`{"spec": {"replicas": 0}}`), metav1.PatchOptions{})
		m.must(err)
	}
	m.must(m.admin.CoreV1().PersistentVolumeClaims("ops").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	within(m.t, patient, "pods, attachments and volumes are gone", func() bool {
		pods, podsErr := m.pods.List(labels.Everything())
		attachments, attachmentsErr := m.attachments.List(labels.Everything())
		volumes, volumesErr := m.volumes.List(labels.Everything())
		m.must(podsErr, attachmentsErr, volumesErr)
		return len(pods)+len(attachments)+len(volumes) == 0
	})
	m.t.Logf("nothing is left after %s", since(began))
	if disks, err := m.driver.Volumes(); len(disks) > 0 || len(m.driver.Attached()) > 0 || err != nil {
		m.t.Errorf("the driver has the volumes %q, %v, and attached %q", disks, err, m.driver.Attached())
	}
	for name, agent := range m.nodes {
		until(m.t, "the node neither uses a volume nor has one attached", func() bool {
			node, err := m.admin.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			m.must(err)
			return len(node.Status.VolumesInUse)+len(node.Status.VolumesAttached) == 0
		})
		m.must(agent.registrar.Stop())
		agent.process.Stop()
		mounts, err := host.New(host.Config{}).List()
		m.must(err)
		for _, mount := range mounts {
			if strings.HasPrefix(mount.Path, agent.dir) {
				m.t.Errorf("%s is left on node %s", mount.Path, name)
			}
		}
	}
	if broken := m.violations(); len(broken) > 0 {
		m.t.Errorf("the driver was told to break its rules: %q", broken)
	}
}
