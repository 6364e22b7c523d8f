package criruntime

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podvol/podvol/examples/virtualkubelet/podlife"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/keylock"
)

// Config says which runtime, and for which node.
type Config struct {
	// Endpoint is the runtime's socket, such as unix:///run/containerd/containerd.sock.
	Endpoint string
	// Node is the name that pods are labelled with.
	Node string
	// Dir is where pods have their directories, absolute.
	Dir string
	// HostNetwork: all pods have the node's network, also those that do not ask for it.
	HostNetwork bool
	// ClusterDNS are the name servers of pods whose dnsPolicy is ClusterFirst; empty: the
	// node's. ClusterDomain is what names of services end with.
	ClusterDNS    []string
	ClusterDomain string
	// CgroupDriver is a kubelet's, cgroupfs or systemd: pods are in the cgroups in which it
	// looks for them when it takes the node back. Empty: they are where the runtime puts them.
	CgroupDriver string
	// Adopt: all pods of the runtime without a node's label are this node's, since it
	// takes over from a kubelet. Without it they are where their UID is asked for.
	Adopt bool
	// RootDir is the root directory of the volumes, which may have been a kubelet's: what
	// that has left there of a pod beside volumes goes with the pod. There is also written
	// which ids a pod has. Empty: nothing goes, and no pod has a user namespace.
	RootDir string
	// LogMaxSize is the size in bytes from which on a log is rotated, and LogMaxFiles how
	// many files each log has at most, at least 2; 0: the kubelet's 10 MiB and 5.
	LogMaxSize  int64
	LogMaxFiles int
	Log         *slog.Logger
	// Tell sends an event about a pod; nil: none is sent.
	Tell func(pod *v1.Pod, eventType, reason, message string)
}

// Runtime is a runtime behind CRI. Its methods are safe for concurrent use.
type Runtime struct {
	Config
	connection *grpc.ClientConn
	service    cri.RuntimeServiceClient
	images     cri.ImageServiceClient
	name       string // of the runtime, for IDs in statuses
	has        features
	pods       keylock.Map[types.UID]
	giving     keylock.Map[struct{}]                  // of ids to pods
	ids        func() (first, pods uint32, err error) // that are set aside
	ends       *ends
	reads      blockingcall.Group[string] // of files, which may be on a server
}

var _ podlife.Runtime = (*Runtime)(nil)

// features are what the runtime says that it can do.
type features struct{ recursiveReadOnly, userNamespaces, strictGroups, network bool }

// New connects to a runtime, and fails where it does not answer. Close must be called.
func New(ctx context.Context, c Config) (*Runtime, error) {
	if !strings.HasPrefix(c.Endpoint, "unix://") {
		return nil, fmt.Errorf("runtime endpoint %q does not begin with unix://", c.Endpoint)
	}
	if err := checkCgroupDriver(c.CgroupDriver); err != nil {
		return nil, err
	}
	connection, err := grpc.NewClient(c.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return nil, err
	}
	c.LogMaxSize, c.LogMaxFiles = cmp.Or(c.LogMaxSize, logMaxSize), max(2, cmp.Or(c.LogMaxFiles, logMaxFiles))
	r := &Runtime{Config: c, connection: connection, service: cri.NewRuntimeServiceClient(connection), images: cri.NewImageServiceClient(connection),
		ids: func() (uint32, uint32, error) { return setAside("/etc/subuid", "/etc/subgid") }}
	if err := r.meet(ctx); err != nil {
		connection.Close()
		return nil, fmt.Errorf("the container runtime at %s: %w", c.Endpoint, err)
	}
	r.ends = newEnds(r.service, c.Log)
	return r, nil
}

// Close ends what New has begun. Containers go on.
func (r *Runtime) Close() error {
	r.ends.close()
	return r.connection.Close()
}

// meet asks the runtime what it is.
func (r *Runtime) meet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	version, err := r.service.Version(ctx, &cri.VersionRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	r.name = version.RuntimeName
	now, err := r.service.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return err
	}
	for _, c := range now.GetStatus().GetConditions() {
		if c.Type == cri.NetworkReady {
			r.has.network = c.Status
		}
	}
	for _, h := range now.RuntimeHandlers {
		if h.Name == "" {
			r.has.recursiveReadOnly, r.has.userNamespaces = h.GetFeatures().GetRecursiveReadOnlyMounts(), h.GetFeatures().GetUserNamespaces()
		}
	}
	r.has.strictGroups = now.GetFeatures().GetSupplementalGroupsPolicy()
	return nil
}

// networkCame asks again whether there is a network for pods, since one can be configured
// later.
func (r *Runtime) networkCame() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	now, err := r.service.Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return true // the start of the pod will tell
	}
	for _, c := range now.GetStatus().GetConditions() {
		if c.Type == cri.NetworkReady && !c.Status {
			return false
		}
	}
	return true
}

// Version is the runtime's, as a node's status has it.
func (r *Runtime) Version(ctx context.Context) (string, error) {
	v, err := r.service.Version(ctx, &cri.VersionRequest{})
	if err != nil {
		return "", err
	}
	return v.RuntimeName + "://" + v.RuntimeVersion, nil
}

// Describe adds to a node's status what the runtime can do.
func (r *Runtime) Describe(node *v1.NodeStatus) {
	node.RuntimeHandlers = []v1.NodeRuntimeHandler{{Features: &v1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &r.has.recursiveReadOnly, UserNamespaces: &r.has.userNamespaces}}}
	node.Features = &v1.NodeFeatures{SupplementalGroupsPolicy: &r.has.strictGroups}
}

// The labels are the kubelet's, but for the node's.
const (
	podNameLabel       = "io.kubernetes.pod.name"
	podNamespaceLabel  = "io.kubernetes.pod.namespace"
	podUIDLabel        = "io.kubernetes.pod.uid"
	containerNameLabel = "io.kubernetes.container.name"
	nodeLabel          = "podvol.io/node"
)

// ofPod selects all of a pod, of which isOwn tells what is this node's.
func ofPod(pod types.UID) map[string]string { return map[string]string{podUIDLabel: string(pod)} }

func isNotFound(err error) bool { return status.Code(err) == codes.NotFound }
