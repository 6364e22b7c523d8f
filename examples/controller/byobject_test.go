package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/podvol/podvol/util/testenv/apiserver"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/attachdetach"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/selfattach"
	"github.com/podvol/podvol/volume/volumemanager"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// agentVar makes this process the agent of node "one": its kubeconfig, its directory and the
// driver's socket.
const agentVar = "CONTROLLER_AGENT"

// beAgent attaches and mounts by itself in a cluster. Lines of its input are what to do.
func beAgent(kubeconfig, dir, socket string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	set, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(set, 0)
	client, err := cluster.FromInformers(factory, set, cluster.Config{Shared: []string{"PersistentVolume", "PersistentVolumeClaim", "CSIDriver"}, Polled: []string{}})
	if err != nil {
		return err
	}
	ctx := context.Background()
	factory.Start(ctx.Done())
	if err := client.WaitForSync(ctx); err != nil {
		return err
	}
	plugin, err := csi.New(csi.Config{Drivers: map[string]string{csitest.DefaultName: socket}})
	if err != nil {
		return err
	}
	attacher, err := selfattach.Open(selfattach.Config{Dir: filepath.Join(dir, "attached"), NodeName: "one",
		Plugins: []volume.VolumePlugin{attachdetach.ByObject{VolumePlugin: plugin, Objects: client}}})
	if err != nil {
		return err
	}
	manager, err := volumemanager.New(volumemanager.Config{RootDir: filepath.Join(dir, "root"), NodeName: "one", Objects: client,
		Plugins: []volume.VolumePlugin{plugin}, Attachments: attacher})
	if err != nil {
		return err
	}
	ended := make(chan error, 2)
	go func() { ended <- manager.Run(ctx) }()
	go func() { ended <- selfattach.Run(ctx, attacher, manager) }()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		what, err := obey(ctx, lines.Text(), client, manager, attacher)
		if err != nil {
			return err
		}
		fmt.Println(what)
	}
	return nil // its test has ended
}

func obey(ctx context.Context, command string, source objects.Source, manager *volumemanager.Manager, attacher *selfattach.Attacher) (string, error) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "p", UID: "uid-p"}, Spec: v1.PodSpec{
		Containers: []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "v", MountPath: "/v"}}}},
		Volumes:    []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"}}}}}}
	if command == "down" {
		manager.PodsComplete()
		err := manager.TearDownPod(ctx, pod.UID)
		return command, errors.Join(err, attacher.WaitForDetached(ctx))
	}
	for {
		volumes, err := manager.SetUpPod(ctx, pod)
		if err == nil {
			path, _ := volumes.Path("v")
			return path, nil
		}
		fmt.Fprintln(os.Stderr, err) // it is tried again, and has its pauses
	}
}

// A driver's real external-attacher attaches and detaches what an agent asks for by itself, whose
// rights are those that ByObject names. The agent is killed while the driver attaches, while the
// volume is mounted, and while the driver detaches.
func TestAnAgentAttachesByObject(t *testing.T) {
	sidecars := os.Getenv(sidecarsVar)
	if sidecars == "" {
		t.Logf("not run: set %s to what testdata/csi/drivers/build sidecars prints", sidecarsVar)
		return
	}
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		apiserver.Run(t, apiserver.Config{}, func(t *testing.T, s *apiserver.Server) {
			a := newAttaching(t, s, sidecars)
			hanging := a.hang("ControllerPublishVolume")
			agent := a.start()
			agent.say("up")
			<-hanging.hit
			agent.kill()
			hanging.release()

			agent = a.start()
			path := agent.ask("up")
			a.must(os.WriteFile(filepath.Join(path, "file"), []byte("data"), 0o600))
			detached := len(a.driver.CallsOf("ControllerUnpublishVolume")) // what was not mounted yet may be
			agent.kill()

			agent = a.start()
			if data, err := os.ReadFile(filepath.Join(agent.ask("up"), "file")); string(data) != "data" || err != nil {
				t.Errorf("the volume has %q, %v", data, err)
			}
			if n := len(a.driver.CallsOf("ControllerUnpublishVolume")); n > detached {
				t.Error("it was detached while it was mounted")
			}
			hanging = a.hang("ControllerUnpublishVolume")
			agent.say("down")
			<-hanging.hit
			agent.kill()
			hanging.release()

			agent = a.start()
			agent.ask("down")
			if left := a.attachments(); left > 0 || len(a.driver.Attached())+len(a.driver.Staged())+len(a.driver.Published()) > 0 {
				t.Errorf("left: %d VolumeAttachments, attached %v", left, a.driver.Attached())
			}
		})
	})
}

// byObject is a node of a cluster whose agent attaches by itself.
type byObject struct {
	moving
	socket, root, kubeconfig string
}

func newAttaching(t *testing.T, s *apiserver.Server, sidecars string) *byObject {
	t.Helper()
	dir, sockets := t.TempDir(), csitest.SocketDir(t)
	a := &byObject{moving: moving{t: t, server: s, admin: clientsetOf(t, s.Admin(t)), dir: dir}, socket: filepath.Join(sockets, "s"), root: csitest.SocketDir(t), kubeconfig: filepath.Join(dir, "agent.kubeconfig")}
	a.driver = csitest.New(csitest.Config{Dir: filepath.Join(dir, "disks"), NodeID: "id-of-one", CreateOnUse: true,
		Capabilities: csitest.Capabilities{Controller: true, Attach: true, Stage: true}})
	t.Cleanup(func() {
		if err := a.driver.Close(); err != nil {
			t.Error(err)
		}
		if broken := a.driver.Violations(); len(broken) > 0 {
			t.Errorf("the driver was told to break its rules: %q", broken)
		}
	})
	a.must(a.driver.Start(a.socket), os.WriteFile(a.kubeconfig, s.Kubeconfig(t, "agent-one"), 0o600))
	a.createObjects()
	a.run("csi-attacher", filepath.Join(sidecars, "csi-attacher"), dir, []string{"csi-attacher", "system:masters"}, "--csi-address="+a.socket)
	return a
}

// createObjects makes the volume, what says of the driver and the node, and the agent's rights.
func (a *byObject) createObjects() {
	a.t.Helper()
	ctx, create, size := a.t.Context(), metav1.CreateOptions{}, v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	_, err := a.admin.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ops"}}, create)
	a.must(err)
	modes, class := []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, ""
	claim, err := a.admin.CoreV1().PersistentVolumeClaims("ops").Create(ctx, &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "disk"},
		Spec: v1.PersistentVolumeClaimSpec{VolumeName: "disk", AccessModes: modes, StorageClassName: &class, Resources: v1.VolumeResourceRequirements{Requests: size}}}, create)
	a.must(err)
	claim.Status.Phase = v1.ClaimBound
	_, claimErr := a.admin.CoreV1().PersistentVolumeClaims("ops").UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	_, pvErr := a.admin.CoreV1().PersistentVolumes().Create(ctx, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk"}, Spec: v1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes, ClaimRef: &v1.ObjectReference{Namespace: "ops", Name: "disk", UID: claim.UID},
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: csitest.DefaultName, VolumeHandle: "disk"}}}}, create)
	_, nodeErr := a.admin.CoreV1().Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, create)
	_, csiNodeErr := a.admin.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "one"},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: csitest.DefaultName, NodeID: "id-of-one"}}}}, create)
	_, driverErr := a.admin.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: csitest.DefaultName}, Spec: storagev1.CSIDriverSpec{AttachRequired: new(true)}}, create)
	reads := []string{"get", "list", "watch"}
	_, roleErr := a.admin.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "agent"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"storage.k8s.io"}, Resources: []string{"volumeattachments"}, Verbs: []string{"get", "list", "watch", "create", "delete"}},
		{APIGroups: []string{""}, Resources: []string{"persistentvolumes", "persistentvolumeclaims"}, Verbs: reads},
		{APIGroups: []string{"storage.k8s.io"}, Resources: []string{"csidrivers"}, Verbs: reads},
	}}, create)
	_, bindErr := a.admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "agent"},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "agent"}, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "agent-one"}}}, create)
	a.must(claimErr, pvErr, nodeErr, csiNodeErr, driverErr, roleErr, bindErr)
}

// attachments is how many VolumeAttachments there are.
func (a *byObject) attachments() int {
	all, err := a.admin.StorageV1().VolumeAttachments().List(a.t.Context(), metav1.ListOptions{})
	a.must(err)
	return len(all.Items)
}

// hangingCall is a call of the driver: hit is closed when it hangs.
type hangingCall struct {
	hit     chan struct{}
	release func()
}

// hang has the first call of a method hang until it is released.
func (a *byObject) hang(method string) hangingCall {
	hit, released := make(chan struct{}), make(chan struct{})
	remove := a.driver.Inject(csitest.Fault{Match: csitest.Method(method), Nth: 1, Hook: func() { close(hit) }, Release: released})
	return hangingCall{hit, func() { close(released); remove() }}
}

// agentProcess is the node's agent as a process of its own.
type agentProcess struct {
	t     *testing.T
	cmd   *exec.Cmd
	input io.Writer
	lines *bufio.Scanner
}

func (a *byObject) start() *agentProcess {
	a.t.Helper()
	p := &agentProcess{t: a.t, cmd: exec.Command("/proc/self/exe")}
	p.cmd.Env = append(os.Environ(), agentVar+"="+strings.Join([]string{a.kubeconfig, a.root, a.socket}, " "))
	p.cmd.Stderr, p.cmd.SysProcAttr = os.Stderr, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	input, inErr := p.cmd.StdinPipe()
	output, outErr := p.cmd.StdoutPipe()
	a.must(inErr, outErr, p.cmd.Start())
	p.input, p.lines = input, bufio.NewScanner(output)
	a.t.Cleanup(p.kill)
	return p
}

func (p *agentProcess) say(command string) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.input, command); err != nil {
		p.t.Fatal(err)
	}
}

// ask says a command, and returns the answer.
func (p *agentProcess) ask(command string) string {
	p.t.Helper()
	p.say(command)
	if !p.lines.Scan() {
		p.t.Fatalf("the agent has ended: %v", p.lines.Err())
	}
	return p.lines.Text()
}

func (p *agentProcess) kill() {
	_ = p.cmd.Process.Kill() // fails once it has ended
	_ = p.cmd.Wait()         // its error is the signal
}
