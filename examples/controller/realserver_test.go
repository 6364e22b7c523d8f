package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/apiserver"
	"github.com/podvol/podvol/volume/objects/cluster"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// shareVar makes this process a replica of the command, on a server of NFS that
// this directory stands for; argsVar is its command line.
const (
	shareVar = "CONTROLLER_SHARE"
	argsVar  = "CONTROLLER_ARGS"
)

// Two processes work with the rights of their mode's manifests; the one that
// leads is killed with SIGKILL amid its work.
func TestTwoProcessesOnARealAPIServer(t *testing.T) {
	// Many clusters let nobody name an owner that he may not finalize.
	strict := "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement"
	apiserver.Run(t, apiserver.Config{Flags: []string{strict}}, func(t *testing.T, s *apiserver.Server) {
		admin := clientsetOf(t, s.Admin(t))
		_, err := admin.CoreV1().Namespaces().Create(t.Context(), &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ops"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		grant(t, admin, "testdata/controller.yaml")
		t.Run(modeProvisioner, func(t *testing.T) { workTogether(t, s, admin, modeProvisioner, "nfs.podvol.io") })
		grant(t, admin, "testdata/everything.yaml")
		t.Run(modeEverything, func(t *testing.T) { workTogether(t, s, admin, modeEverything, "kubernetes.io/nfs") })
	})
}

// beReplica is the life of one process; a SIGTERM ends it.
func beReplica(share string, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	o, err := parse(args, io.Discard)
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1 // as good as none in the command
	set, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	mounter := fakemount.New()
	mounter.Serve("10.0.0.1:/export", share)
	c, err := newController(o, set, set.CoordinationV1(), mounter, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}
	return errors.Join(c.run(ctx), mounter.Close())
}

func clientsetOf(t *testing.T, kubeconfig []byte) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	client, clientErr := rest.HTTPClientFor(config)
	set, setErr := kubernetes.NewForConfigAndClient(config, client)
	if err := errors.Join(clientErr, setErr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	return set
}

// grant gives the controller the rights of a manifest.
func grant(t *testing.T, admin kubernetes.Interface, manifest string) {
	t.Helper()
	for _, object := range manifestOf(t, manifest) {
		var err error
		rbac, options := admin.RbacV1(), metav1.CreateOptions{}
		switch o := object.(type) {
		case *rbacv1.ClusterRole:
			_, err = rbac.ClusterRoles().Create(t.Context(), o, options)
		case *rbacv1.ClusterRoleBinding:
			_, err = rbac.ClusterRoleBindings().Create(t.Context(), o, options)
		case *rbacv1.Role:
			_, err = rbac.Roles(o.Namespace).Create(t.Context(), o, options)
		case *rbacv1.RoleBinding:
			_, err = rbac.RoleBindings(o.Namespace).Create(t.Context(), o, options)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// process is a replica as a process of its own.
type process struct {
	cmd *exec.Cmd
	log *bytes.Buffer // to be read once it has ended
}

func startProcess(t *testing.T, share string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command("/proc/self/exe"), log: new(bytes.Buffer)}
	p.cmd.Env = append(os.Environ(), shareVar+"="+share, argsVar+"="+strings.Join(args, " "))
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // fails once it has ended
		_ = p.cmd.Wait()
		if t.Failed() {
			t.Logf("process %d has said:\n%s", p.cmd.Process.Pid, p.log)
		}
	})
	return p
}

// until asks until it is so: the processes tell nobody.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	within(t, 2*time.Minute, what, is)
}

func within(t *testing.T, limit time.Duration, what string, is func() bool) {
	t.Helper()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for late := time.After(limit); !is(); {
		select {
		case <-again.C:
		case <-late:
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// bindHere does what kube-controller-manager does, until the test ends.
func bindHere(t *testing.T, admin kubernetes.Interface) {
	t.Helper()
	factory := informers.NewSharedInformerFactory(admin, 0)
	client, err := cluster.FromInformers(factory, admin, cluster.Config{Shared: []string{"Pod", "PersistentVolume", "PersistentVolumeClaim", "StorageClass"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	factory.Start(ctx.Done())
	if err := client.WaitForSync(ctx); err != nil {
		t.Error(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- persistentvolume.NewController(persistentvolume.ControllerConfig{Objects: client}).Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		client.Close()
		factory.Shutdown()
	})
}

// clusterOfTwo is where two replicas work together.
type clusterOfTwo struct {
	t                     *testing.T
	admin                 kubernetes.Interface
	mode, class           string
	share, kubeconfigFile string
}

// inCluster has a class whose volumes are directories of a share.
func inCluster(t *testing.T, s *apiserver.Server, admin kubernetes.Interface, mode, provisioner string) *clusterOfTwo {
	t.Helper()
	c := &clusterOfTwo{t: t, admin: admin, mode: mode, class: "shared-" + mode, share: t.TempDir(), kubeconfigFile: filepath.Join(t.TempDir(), "kubeconfig")}
	_, err := admin.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: c.class}, Provisioner: provisioner,
		Parameters: map[string]string{"server": "10.0.0.1", "share": "/export"}}, metav1.CreateOptions{})
	identity := s.Kubeconfig(t, "system:serviceaccount:kube-system:podvol-controller", "system:serviceaccounts", "system:serviceaccounts:kube-system")
	if err := errors.Join(err, os.WriteFile(c.kubeconfigFile, identity, 0o600)); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *clusterOfTwo) start() *process {
	c.t.Helper()
	return startProcess(c.t, c.share, "--kubeconfig="+c.kubeconfigFile, "--mode="+c.mode, "--root-dir="+c.t.TempDir(), "--bind-address=", "--workers=2",
		"--leader-elect-lease-duration=5s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=1s")
}

// holder is who holds the lease; "": nobody.
func (c *clusterOfTwo) holder() string {
	lease, err := c.admin.CoordinationV1().Leases("kube-system").Get(c.t.Context(), "podvol-controller", metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

func (c *clusterOfTwo) claims() corev1.PersistentVolumeClaimInterface {
	return c.admin.CoreV1().PersistentVolumeClaims("ops")
}

// wanted is a claim's spec.
func (c *clusterOfTwo) wanted() v1.PersistentVolumeClaimSpec {
	return v1.PersistentVolumeClaimSpec{StorageClassName: &c.class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany},
		Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}}}
}

// create returns the claims' names.
func (c *clusterOfTwo) create(n int) (names []string) {
	c.t.Helper()
	for i := range n {
		name := fmt.Sprintf("%s-%03d", c.mode, i)
		claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: c.wanted()}
		if _, err := c.claims().Create(c.t.Context(), claim, metav1.CreateOptions{}); err != nil {
			c.t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

// bound is how many claims are bound, each to a volume of its own.
func (c *clusterOfTwo) bound() int {
	c.t.Helper()
	all, err := c.claims().List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	volumes := make(map[string]bool)
	for _, claim := range all.Items {
		if claim.Status.Phase == v1.ClaimBound {
			volumes[claim.Spec.VolumeName] = true
		}
	}
	return len(volumes)
}

// directories are those of volumes.
func (c *clusterOfTwo) directories() []string {
	c.t.Helper()
	all, err := filepath.Glob(filepath.Join(c.share, "pvc-*"))
	if err != nil {
		c.t.Error(err)
	}
	return all
}

// ownAVolume has a pod with an ephemeral volume come and go.
func (c *clusterOfTwo) ownAVolume() {
	c.t.Helper()
	pods := c.admin.CoreV1().Pods("ops")
	ephemeral := v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{Spec: c.wanted()}}}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "owner"}, Spec: v1.PodSpec{
		Containers: []v1.Container{{Name: "c", Image: "i"}}, Volumes: []v1.Volume{{Name: "scratch", VolumeSource: ephemeral}}}}
	if _, err := pods.Create(c.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	until(c.t, "the claim of an ephemeral volume is bound", func() bool {
		claim, err := c.claims().Get(c.t.Context(), "owner-scratch", metav1.GetOptions{})
		return err == nil && claim.Status.Phase == v1.ClaimBound
	})
	if err := pods.Delete(c.t.Context(), "owner", metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// deleteAll deletes the claims, and waits until nothing is left of them.
func (c *clusterOfTwo) deleteAll(names []string) {
	c.t.Helper()
	for _, name := range names {
		if err := c.claims().Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
			c.t.Fatal(err)
		}
	}
	until(c.t, "all volumes are gone", func() bool {
		all, err := c.admin.CoreV1().PersistentVolumes().List(c.t.Context(), metav1.ListOptions{})
		return err == nil && len(all.Items) == 0
	})
	if left := c.directories(); len(left) > 0 {
		c.t.Errorf("directories are left: %q", left)
	}
}

func workTogether(t *testing.T, s *apiserver.Server, admin kubernetes.Interface, mode, provisioner string) {
	const n = 100
	c := inCluster(t, s, admin, mode, provisioner)
	if mode == modeProvisioner {
		bindHere(t, admin)
	}
	first := c.start()
	until(t, "the first leads", func() bool { return c.holder() != "" })
	led := c.holder()
	second := c.start()
	claims := c.create(n)
	until(t, "the first works", func() bool { return c.bound() > 0 })
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed, done := time.Now(), c.bound()
	until(t, "all claims are bound", func() bool { return c.bound() == n })
	t.Logf("%d claims were bound when the leader was killed, %d after %s", done, n, time.Since(killed).Round(time.Millisecond))
	until(t, "the second leads", func() bool { return c.holder() != "" && c.holder() != led })
	if directories := c.directories(); len(directories) != n {
		t.Errorf("%d directories for %d claims: %q", len(directories), n, directories)
	}
	if mode == modeEverything {
		c.ownAVolume()
	}
	c.deleteAll(claims)
	if err := second.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := second.cmd.Wait(); err != nil {
		t.Errorf("the second has ended with %v", err)
	}
	if c.holder() != "" {
		t.Errorf("%q holds the lease in the end", c.holder())
	}
	if strings.Contains(second.log.String(), "forbidden") {
		t.Error("the manifest's rights are not enough")
	}
}
