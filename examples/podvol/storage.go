package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/rootdir"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/volumemanager"
)

// addVolumeDirs adds --volume-dir.
func addVolumeDirs(flags *pflag.FlagSet, dirs *[]string) {
	flags.StringArrayVar(dirs, "volume-dir", nil,
		"`DIR` below which volumes are made for storage classes of provisioner kubernetes.io/host-path (repeatable; default: podvol/volumes below the root directory)")
}

// checkVolumeDirs makes directories absolute.
func checkVolumeDirs(dirs []string) ([]string, error) {
	absolute := make([]string, 0, len(dirs))
	for _, dir := range dirs {
		path, err := filepath.Abs(dir)
		if err != nil {
			return nil, usagef("--volume-dir %s: %w", dir, err)
		}
		if info, err := os.Stat(path); err != nil {
			return nil, usagef("--volume-dir: %w", err)
		} else if !info.IsDir() {
			return nil, usagef("--volume-dir %s is no directory", path)
		}
		absolute = append(absolute, path)
	}
	return absolute, nil
}

// checkNewVolumeDirs is [checkVolumeDirs] for commands that make and mount volumes:
// a directory that another user can change is refused, since he could put a link in
// a volume's place. What is there already can be unmounted and deleted.
func checkNewVolumeDirs(dirs []string) ([]string, error) {
	absolute, err := checkVolumeDirs(dirs)
	if err != nil {
		return nil, err
	}
	for _, dir := range absolute {
		own, err := rootdir.Open(dir)
		if err != nil {
			return nil, fmt.Errorf("--volume-dir %s: %w", dir, err)
		}
		own.Close()
	}
	return absolute, nil
}

// storage is the side of a cluster for this machine while a command keeps it:
// claims, their volumes, and what makes these and takes them away.
type storage struct {
	*embedded.Cluster
	// changed has a value after something has changed that pods may wait for, and
	// news says what.
	changed chan struct{}
	news    changes
	ended   <-chan error // nil until start
	end     func() error
	stops   []func()
	// without is why claims are not served; nil: they are. Then the cluster is an
	// empty one, at a directory that goes with it.
	without   *withoutClaimsError
	removeDir func() error
}

// openStorage loads the claims and volumes of a root directory. It does nothing
// with them before start. If a record is damaged, claims are not served, and all
// else is.
func openStorage(ctx context.Context, c clusterConfig) (*storage, error) {
	s := &storage{changed: make(chan struct{}, 1), end: func() error { return nil }, removeDir: func() error { return nil }}
	c.explained = func(claim types.NamespacedName) {
		s.tell(volume.NewObjectRef("PersistentVolumeClaim", claim.Namespace, claim.Name))
	}
	cluster, err := openCluster(ctx, c)
	s.Cluster = cluster
	if damaged, ok := errors.AsType[*persistentvolume.DamagedRecordError](err); ok {
		err = s.openWithout(ctx, c, damaged)
	}
	if err != nil {
		return nil, errors.Join(err, s.removeDir())
	}
	for _, kind := range []string{"PersistentVolumeClaim", "PersistentVolume", "StorageClass", "Node", "Pod"} {
		s.stops = append(s.stops, s.Objects().WatchKind(kind, s.tell))
	}
	return s, nil
}

func (s *storage) tell(of volume.ObjectRef) {
	s.news.add(of)
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// start begins to bind claims and to make and reclaim volumes; a second call does
// nothing. It outlives ctx, until stop.
func (s *storage) start(ctx context.Context) {
	if s.ended != nil {
		return
	}
	s.ended, s.end = inBackground(ctx, s.Run)
}

// stop ends what start began, and gives the claims and volumes back.
func (s *storage) stop() error {
	for _, stop := range s.stops {
		stop()
	}
	err := s.end()
	if closeErr := s.Close(); err == nil {
		err = closeErr
	}
	return errors.Join(err, s.removeDir())
}

// changes are the objects that have changed since they were taken last.
type changes struct {
	mu  sync.Mutex
	all map[volume.ObjectRef]bool
}

func (c *changes) add(of volume.ObjectRef) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = make(map[volume.ObjectRef]bool)
	}
	c.all[of] = true
}

func (c *changes) take() (all map[volume.ObjectRef]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, c.all = c.all, nil
	return all
}

// mountedFor says what a node has mounted, or may have, for a pod, and of claims.
func mountedFor(node *volumemanager.Manager) mountedForFunc {
	return func(_ context.Context, pod types.UID, claims []types.NamespacedName) ([]embedded.Mounted, error) {
		rows := node.ExplainPod(pod)
		for _, claim := range claims {
			rows = append(rows, slices.DeleteFunc(node.ExplainClaim(claim), func(v volumemanager.VolumeStatus) bool { return v.PodUID == pod })...)
		}
		return mountedRows(rows), nil
	}
}

// mountedForFunc is [embedded.Config]'s.
type mountedForFunc = func(context.Context, types.UID, []types.NamespacedName) ([]embedded.Mounted, error)

// mountedOn says what a node has mounted, or may have, for whomever.
func mountedOn(node *volumemanager.Manager) func(context.Context) ([]embedded.Mounted, error) {
	return func(context.Context) ([]embedded.Mounted, error) {
		return mountedRows(node.Explain()), incomplete(node.Damaged())
	}
}

// storageEvents writes what goes wrong with claims and volumes to a log.
type storageEvents struct {
	log    *slog.Logger
	rename func(string) string
}

// Event implements persistentvolume.EventRecorder.
func (e storageEvents) Event(object runtime.Object, eventType, reason, message string) {
	about, ok := object.(metav1.Object)
	if eventType != v1.EventTypeWarning || !ok {
		return
	}
	name := about.GetName()
	if about.GetNamespace() != "" {
		name = about.GetNamespace() + "/" + name
	}
	e.log.Warn(e.rename(message), "object", fmt.Sprintf("%s %s", object.GetObjectKind().GroupVersionKind().Kind, name), "reason", reason)
}
