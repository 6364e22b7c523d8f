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
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/apiserver"
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
	apiserver.Run(t, apiserver.Config{}, func(t *testing.T, s *apiserver.Server) {
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
	mounter := mount.NewFakeMounter()
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
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for late := time.After(2 * time.Minute); !is(); {
		select {
		case <-again.C:
		case <-late:
			t.Fatalf("not within two minutes: %s", what)
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

func workTogether(t *testing.T, s *apiserver.Server, admin kubernetes.Interface, mode, provisioner string) {
	const n = 100
	core, share, class := admin.CoreV1(), t.TempDir(), "shared-"+mode
	_, err := admin.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: provisioner,
		Parameters: map[string]string{"server": "10.0.0.1", "share": "/export"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	identity := s.Kubeconfig(t, "system:serviceaccount:kube-system:podvol-controller", "system:serviceaccounts", "system:serviceaccounts:kube-system")
	if err := os.WriteFile(kubeconfig, identity, 0o600); err != nil {
		t.Fatal(err)
	}
	if mode == modeProvisioner {
		bindHere(t, admin)
	}
	start := func() *process {
		return startProcess(t, share, "--kubeconfig="+kubeconfig, "--mode="+mode, "--root-dir="+t.TempDir(), "--bind-address=", "--workers=2",
			"--leader-elect-lease-duration=5s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=1s")
	}
	holder := func() string {
		lease, err := admin.CoordinationV1().Leases("kube-system").Get(t.Context(), "podvol-controller", metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil {
			return ""
		}
		return *lease.Spec.HolderIdentity
	}
	first := start()
	until(t, "the first leads", func() bool { return holder() != "" })
	led := holder()
	second := start()
	claim := func(i int) *v1.PersistentVolumeClaim {
		return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: fmt.Sprintf("%s-%03d", mode, i)}, Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}}}}
	}
	for i := range n {
		if _, err := core.PersistentVolumeClaims("ops").Create(t.Context(), claim(i), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	bound := func() map[string]bool {
		all, err := core.PersistentVolumeClaims("ops").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		volumes := make(map[string]bool)
		for _, c := range all.Items {
			if c.Status.Phase == v1.ClaimBound {
				volumes[c.Spec.VolumeName] = true
			}
		}
		return volumes
	}
	until(t, "the first works", func() bool { return len(bound()) > 0 })
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed, done := time.Now(), len(bound())
	until(t, "all claims are bound", func() bool { return len(bound()) == n })
	t.Logf("%d claims were bound when the leader was killed, %d after %s", done, n, time.Since(killed).Round(time.Millisecond))
	until(t, "the second leads", func() bool { return holder() != "" && holder() != led })
	if directories, err := filepath.Glob(filepath.Join(share, "pvc-*")); err != nil || len(directories) != n {
		t.Errorf("%d directories for %d claims: %q, %v", len(directories), n, directories, err)
	}

	for i := range n {
		if err := core.PersistentVolumeClaims("ops").Delete(t.Context(), claim(i).Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "all volumes are gone", func() bool {
		all, err := core.PersistentVolumes().List(t.Context(), metav1.ListOptions{})
		return err == nil && len(all.Items) == 0
	})
	if left, _ := filepath.Glob(filepath.Join(share, "pvc-*")); len(left) > 0 {
		t.Errorf("directories are left: %q", left)
	}
	if err := second.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := second.cmd.Wait(); err != nil {
		t.Errorf("the second has ended with %v", err)
	}
	if holder() != "" {
		t.Errorf("%q holds the lease in the end", holder())
	}
	if strings.Contains(second.log.String(), "forbidden") {
		t.Error("the manifest's rights are not enough")
	}
}
