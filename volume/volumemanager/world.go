package volumemanager

import (
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/volumemanager/internal/devices"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// world is the desired and the actual state of the world of one node: its pods
// and their volumes.
type world struct {
	config  Config
	host    *volume.Host
	plugins *volume.VolumePluginMgr
	log     *slog.Logger
	records rootdir.Records // set before ready is closed

	running    sync.WaitGroup // work beside the queue
	podDirs    rootdir.PodDirs
	containers *containermounts.Binder

	ready   chan struct{} // closed when the records have been read
	stopped chan struct{} // closed when Run ends
	queue   *work.Queue[*podVolume]

	mu           sync.Mutex // guards what follows, and all pods, volumes and devices
	stopping     bool
	pods         map[types.UID]*podState
	byClaim      claimIndex
	declarations int
	complete     bool               // every pod has been declared once
	kept         map[types.UID]bool // though they are not declared
	watchers     map[*watcher]struct{}
	devices      *devices.Table
	oncePod      map[string]map[*podVolume]struct{} // those that wait for a PersistentVolume that another pod has
}

func newWorld(config Config, host *volume.Host, plugins *volume.VolumePluginMgr) *world {
	w := &world{
		config:   config,
		host:     host,
		plugins:  plugins,
		log:      config.Logger,
		ready:    make(chan struct{}),
		stopped:  make(chan struct{}),
		pods:     make(map[types.UID]*podState),
		byClaim:  make(claimIndex),
		oncePod:  make(map[string]map[*podVolume]struct{}),
		watchers: make(map[*watcher]struct{}),
	}
	w.devices = devices.New(devices.Config{
		Lock: &w.mu, IsMountPoint: w.isMountPoint, Hidden: w.hidden,
		Unattached: func(r devices.Reports) error { return newAttachmentError(config.NodeName, r) },
	})
	return w
}

// isMountPoint reports whether something is mounted just at a path, by the mount
// table. Nothing is at the empty path.
func (w *world) isMountPoint(path string) (bool, error) {
	if path == "" {
		return false, nil
	}
	mounts := table.Of(w.host.Mounter)
	_, mounted, err := mounts.At(path)
	return mounted, err
}

// mountedBelow reports whether a volume's path is a mount point of its own. A
// path outside the root, a hostPath's, is not podvol's.
func (w *world) mountedBelow(path string) (bool, error) {
	if !pathin.Strictly(rootdir.PodsDir(w.host.RootDir), path) {
		return false, nil
	}
	return w.isMountPoint(path)
}

// watcher makes a function comparable.
type watcher struct{ f func(VolumeStatus) }

// notify tells the subscribers. The caller holds the lock, so that statuses
// reach them in order, and none after stop.
func (w *world) notify(status VolumeStatus) {
	for watcher := range w.watchers {
		watcher.f(status)
	}
}

// rows are the status of a directory's volumes, with their server's state. The
// caller holds the lock.
func (w *world) rows(s *podVolume) []VolumeStatus {
	rows := s.rows()
	health := w.healthOf(s)
	for i := range rows {
		rows[i].Server = health
	}
	return rows
}

// sortedRows are the rows of several directories, by pod and volume. The caller holds the lock.
func (w *world) sortedRows(volumes iter.Seq[*podVolume]) (all []VolumeStatus) {
	for s := range volumes {
		all = append(all, w.rows(s)...)
	}
	slices.SortFunc(all, compareStatus)
	return all
}

// healthOf is what the plugin knows of the volume's server; zero: it keeps no
// book, or it is not known yet which plugin and server it is.
func (w *world) healthOf(s *podVolume) volume.SourceHealth {
	r := s.describe()
	if r.Plugin == "" || r.InlineVolume == nil && r.PersistentVolume == nil {
		return volume.SourceHealth{}
	}
	plugin, err := w.plugins.FindPluginByName(r.Plugin)
	if err != nil {
		return volume.SourceHealth{}
	}
	health, _ := volume.HealthOf(plugin, r.Spec())
	return health
}

// ServerTrouble says in a few words what trouble the volume's server has; empty
// where none is known.
func (s VolumeStatus) ServerTrouble() string {
	h := s.Server
	if h.Source == "" || h.Answers {
		return ""
	}
	text := fmt.Sprintf("%s has not answered since %s", h.Source, h.Since.UTC().Format(time.RFC3339))
	if wait := time.Until(h.RetryAt); wait > 0 {
		return text + fmt.Sprintf("; it is tried again in %s", wait.Round(time.Millisecond))
	}
	return text + "; it is tried again by the next mount from it"
}

// claimIndex finds the volumes whose rows name a claim, so that a look-up costs
// what it finds and not the size of the node. The world's lock guards it.
type claimIndex map[types.NamespacedName]map[*podVolume]struct{}

// note notes which claim a volume's rows name now. It must be called after each
// change of what they are made of. The caller holds the lock.
func (c claimIndex) note(s *podVolume) {
	var claim types.NamespacedName
	if slices.Contains(s.pod.volumes, s) {
		claim = claimOf(s.describe())
	}
	if claim == s.claim {
		return
	}
	delete(c[s.claim], s)
	if len(c[s.claim]) == 0 {
		delete(c, s.claim)
	}
	if s.claim = claim; claim.Name == "" {
		return
	}
	if c[claim] == nil {
		c[claim] = make(map[*podVolume]struct{})
	}
	c[claim][s] = struct{}{}
}
