package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/testenv/noleak"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
	"github.com/podvol/podvol/volume/persistentvolume"
)

func TestMain(m *testing.M) {
	sandbox.Main()
	if os.Getenv(mainVar) != "" {
		main()
		os.Exit(0)
	}
	if share := os.Getenv(shareVar); share != "" {
		if err := beReplica(share, strings.Split(os.Getenv(argsVar), " ")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if agent := strings.Fields(os.Getenv(agentVar)); len(agent) == 3 {
		if err := beAgent(agent[0], agent[1], agent[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	utilruntime.ErrorHandlers = nil // they pause by a clock that virtual time turns back
	noleak.Main(m)
}

// site is a cluster with a server of NFS.
type site struct {
	t      *testing.T
	server *clustertest.Server
	share  string
	root   string
}

func newSite(t *testing.T, provisioner string) *site {
	s := &site{t: t, server: clustertest.NewServer(), share: t.TempDir(), root: t.TempDir()}
	s.create(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "shared"}, Provisioner: provisioner,
		Parameters: map[string]string{"server": "10.0.0.1", "share": "/export"}})
	return s
}

func (s *site) create(object metav1.Object) {
	s.t.Helper()
	if _, err := s.server.Writer().Create(s.t.Context(), object); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) claim(name string) {
	s.t.Helper()
	s.create(&v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: name}, Spec: v1.PersistentVolumeClaimSpec{
		StorageClassName: new("shared"), AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany},
		Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}}}})
}

// replica is one process of the command.
type replica struct {
	t *testing.T
	*controller
	network *clustertest.Transport
	cancel  context.CancelFunc
	ended   chan error
}

func (s *site) start(args ...string) *replica {
	s.t.Helper()
	o, err := parse(append([]string{"--root-dir", filepath.Join(s.root, s.t.Name()), "--bind-address="}, args...), io.Discard)
	if err != nil {
		s.t.Fatal(err)
	}
	mounter := fakemount.New()
	s.t.Cleanup(func() { mounter.Close() })
	mounter.Serve("10.0.0.1:/export", s.share)
	r := &replica{t: s.t, network: clustertest.NewTransport(s.server), ended: make(chan error, 1)}
	clientset := clustertest.Clientset(s.t, "http://api", r.network)
	r.controller, err = newController(o, clientset, clientset.CoordinationV1(), mounter, slog.New(slog.DiscardHandler))
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	r.cancel = cancel
	go func() { r.ended <- r.run(ctx) }()
	return r
}

// binder is what kube-controller-manager does.
func (s *site) binder() (stop func()) {
	process, close := clustertest.Connect(s.t, s.server, clustertest.NewTransport(s.server), "Pod", "PersistentVolume", "PersistentVolumeClaim", "StorageClass")
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- persistentvolume.NewController(persistentvolume.ControllerConfig{Objects: process}).Run(ctx)
	}()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
		close()
	}
}

func (s *site) wantBound(name string) {
	s.t.Helper()
	claim, err := objects.Get[*v1.PersistentVolumeClaim](s.t.Context(), s.server.Store(), volume.NewObjectRef("PersistentVolumeClaim", "ops", name))
	if err != nil || claim.Status.Phase != v1.ClaimBound {
		s.t.Fatalf("claim %s: %v, %v", name, claim, err)
	}
	if _, err := os.Stat(filepath.Join(s.share, claim.Spec.VolumeName)); err != nil {
		s.t.Error(err)
	}
}

func (s *site) wantEmpty() {
	s.t.Helper()
	volumes, err := s.server.Store().List(s.t.Context(), "PersistentVolume", "")
	if err != nil || len(volumes) > 0 {
		s.t.Errorf("volumes are left: %v, %v", volumes, err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.share, "pvc-*")); len(left) > 0 {
		s.t.Errorf("directories are left: %v", left)
	}
}

// Of two replicas one works; when it is killed the other one goes on.
func TestTwoReplicas(t *testing.T) {
	for mode, provisioner := range map[string]string{modeProvisioner: "nfs.podvol.io", modeEverything: "kubernetes.io/nfs"} {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, provisioner)
				if mode == modeProvisioner {
					defer s.binder()()
				}
				first, second := s.start("--mode", mode), (*replica)(nil)
				time.Sleep(time.Second)
				second = s.start("--mode", mode)
				s.claim("one")
				time.Sleep(time.Minute)
				s.wantBound("one")
				if !first.health.State().Leading || second.health.State().Leading {
					t.Fatalf("who leads: %+v, %+v", first.health.State(), second.health.State())
				}
				first.network.SetDown(clustertest.ErrUnreachable) // killed: nothing of it reaches the cluster any more
				first.cancel()
				s.claim("two")
				time.Sleep(time.Minute)
				s.wantBound("two")
				if !second.health.State().Leading {
					t.Errorf("the second: %+v", second.health.State())
				}
				for _, name := range []string{"one", "two"} {
					if err := s.server.Writer().Delete(t.Context(), volume.NewObjectRef("PersistentVolumeClaim", "ops", name), objects.Preconditions{}); err != nil {
						t.Error(err)
					}
				}
				time.Sleep(time.Minute)
				s.wantEmpty()
				second.cancel()
				for _, r := range []*replica{first, second} {
					if err := <-r.ended; err != nil {
						t.Errorf("run: %v", err)
					}
				}
				if holder := s.server.Lease("kube-system", "podvol-controller").Spec.HolderIdentity; holder != nil && *holder != "" {
					t.Errorf("%q holds the lease", *holder)
				}
			})
		})
	}
}

// Volumes of in-tree classes that a CSI driver has taken over are left to its provisioner, and
// say so.
func TestInTreeClassOfADriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const plugin, driver = "kubernetes.io/gce-pd", "pd.csi.storage.gke.io"
		s := newSite(t, plugin)
		r := s.start("--mode", modeEverything, "--leader-elect=false")
		s.claim("disk")
		time.Sleep(time.Minute)
		claim, err := objects.Get[*v1.PersistentVolumeClaim](t.Context(), s.server.Store(), volume.NewObjectRef("PersistentVolumeClaim", "ops", "disk"))
		if err != nil || claim.Annotations["volume.kubernetes.io/storage-provisioner"] != driver || claim.Status.Phase == v1.ClaimBound {
			t.Fatalf("the claim is %+v, %v", claim, err)
		}
		s.create(&v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "made", Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": plugin}},
			Spec: v1.PersistentVolumeSpec{StorageClassName: "shared", AccessModes: claim.Spec.AccessModes, Capacity: claim.Spec.Resources.Requests, PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete,
				ClaimRef:               &v1.ObjectReference{Namespace: "ops", Name: "disk", UID: claim.UID},
				PersistentVolumeSource: v1.PersistentVolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "disk"}}}})
		time.Sleep(time.Minute)
		made, err := objects.Get[*v1.PersistentVolume](t.Context(), s.server.Store(), volume.NewObjectRef("PersistentVolume", "", "made"))
		if err != nil || made.Status.Phase != v1.VolumeBound || made.Annotations["pv.kubernetes.io/migrated-to"] != driver {
			t.Errorf("the volume is %+v, %v", made, err)
		}
		r.cancel()
		if err := <-r.ended; err != nil {
			t.Error(err)
		}
	})
}

// wantAnswer wants these words among what is served at a path.
func (r *replica) wantAnswer(path, want string) {
	r.t.Helper()
	w := httptest.NewRecorder()
	handler(r.controller).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), want) {
		r.t.Errorf("%s: %d %s", path, w.Code, w.Body)
	}
}

func TestMetricsOfAttaching(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, "nfs.podvol.io")
		r := s.start("--mode=attach-detach")
		time.Sleep(time.Second)
		r.wantAnswer("/metrics", `attach_detach_controller_attachdetach_controller_forced_detaches{reason="out-of-service"} 0`)
		r.cancel()
		if err := <-r.ended; err != nil {
			t.Error(err)
		}
	})
}

func TestHealth(t *testing.T) {
	for _, elect := range []string{"--leader-elect", "--leader-elect=false"} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, "nfs.podvol.io")
			r := s.start(elect)
			time.Sleep(time.Second)
			for path, want := range map[string]string{"/healthz": "leading: true", "/readyz": "ok", "/metrics": `leader_election_master_status{name="podvol-controller"} 1`} {
				r.wantAnswer(path, want)
			}
			r.cancel()
			if err := <-r.ended; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{{"--mode", "nonsense"}, {"argument"}, {"--leader-elect-lease-duration", "soon"}, {"--workers", "0"},
		{"--mode", "everything", "--provisioner", "nfs.example.com"}} {
		if _, err := parse(args, io.Discard); exitCode(err) != 2 {
			t.Errorf("%q: %v", args, err)
		}
	}
	if _, err := parse([]string{"--help"}, io.Discard); exitCode(err) != 0 {
		t.Errorf("--help: %v", err)
	}
}

// A name that cannot be is refused before the replica campaigns.
func TestProvisionersThatCannotBe(t *testing.T) {
	for _, name := range []string{"", "kubernetes.io/nfs"} {
		synctest.Test(t, func(t *testing.T) {
			o, err := parse([]string{"--provisioner", name}, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			mounter := fakemount.New()
			defer mounter.Close()
			clientset := clustertest.Clientset(t, "http://api", clustertest.NewTransport(clustertest.NewServer()))
			if _, err := newController(o, clientset, clientset.CoordinationV1(), mounter, slog.New(slog.DiscardHandler)); exitCode(err) != 2 {
				t.Errorf("%q: %v", name, err)
			}
		})
	}
}
