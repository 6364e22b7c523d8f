package standalone

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/persisted"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/plugins/hostpath"
	"github.com/podvol/podvol/volume/selfattach"
	"github.com/podvol/podvol/volume/volumemanager"
)

// ClaimsDir is the directory of the claims and PersistentVolumes of a root
// directory.
func ClaimsDir(rootDir string) string {
	return filepath.Join(volumemanager.StateDir(rootDir), "claims")
}

// claimsMark is an empty file beside the directory of the claims, which says that there
// was one: without it, a directory that was removed looks like one that was never made.
func claimsMark(rootDir string) string {
	return filepath.Join(volumemanager.StateDir(rootDir), "claims.made")
}

// markClaims makes the mark. Where that fails, as on a full disk, the next opening tries
// again: the claims themselves are as safe as without it.
func markClaims(rootDir string) {
	if !persisted.IsUsed(ClaimsDir(rootDir)) {
		return // nor could it be written that they are used
	}
	if f, err := os.OpenFile(claimsMark(rootDir), os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW, 0o600); err == nil {
		_ = f.Close()
	}
}

// CheckClaims returns an error that matches [ErrClaimsLost] if a root directory had claims
// and their whole directory is gone, or was emptied. It changes nothing and takes no lock.
func CheckClaims(rootDir string) error {
	if _, err := os.Lstat(claimsMark(rootDir)); err != nil {
		return nil
	}
	dir := ClaimsDir(rootDir)
	if info, err := os.Lstat(dir); persisted.IsUsed(dir) || err == nil && !info.IsDir() {
		return nil // its reader tells other faults
	}
	return &volume.Failure{Cause: ErrClaimsLost, Subject: rootDir, What: "the records of all claims are lost: " + dir + " is gone, or was emptied",
		Next: "restore it from a backup before a pod is mounted; without one, remove " + claimsMark(rootDir) + ", and the next mount begins anew and says which data it finds"}
}

// ErrClaimsLost is the cause of [CheckClaims] and of [OpenClaims].
const ErrClaimsLost volume.Cause = "the records of all claims are lost"

// ClaimsConfig describes the claims to open.
type ClaimsConfig struct {
	// RootDir is the root directory of the claims.
	RootDir string
	// WorkDir is the plugins' root directory. Empty: RootDir.
	WorkDir string
	// Dir is the directory of the claims. Empty: [ClaimsDir] of RootDir.
	Dir string
	// Node is the node's configuration. Only its NodeName, Mounter, HostFiles and
	// Tracer are used; the last as persistentvolume.ControllerConfig's.
	Node NodeConfig
	// Store keeps the objects. Nil: a store of the cluster's own.
	Store *objects.Store
	// Manager names the writer of applied objects, as a field manager.
	Manager string
	// Events takes events about claims and volumes; nil drops them.
	Events persistentvolume.EventRecorder
	// LockTimeout is how long to wait for another process that has the claims. 0:
	// the time of package embedded.
	LockTimeout time.Duration
	// Logger may be nil.
	Logger *slog.Logger

	// VolumeDirs are directories for new volumes, beside the root directory.
	VolumeDirs []string
	// Plugins replace stock plugins. They must be other instances than the
	// plugins of a [NodeConfig].
	Plugins []volume.VolumePlugin
	// Mounted returns the volumes that are mounted, or may be. Nil:
	// [MountedBelow] the root directory.
	Mounted func(context.Context) ([]embedded.Mounted, error)
	// MountedFor returns the same for one pod and its claims. Nil: Mounted is
	// called.
	MountedFor MountedForFunc
	// Explained is called with claims for which there is a new reason; nil: it is
	// not called.
	Explained func(types.NamespacedName)
	// Only selects the objects that are worked on. Nil: all.
	Only func(volume.ObjectRef) bool
	// Bound is called by [BindClaims] before other processes may have the claims.
	Bound func(context.Context, *embedded.Cluster) error
}

// OpenClaims opens the claims of a root directory. Close of the cluster releases
// them. If another process has the claims, the error is [embedded.ErrBusy]. If a
// record is damaged, it is a *[persisted.DamagedError]. If the root directory
// had claims and their directory is gone, it matches [ErrClaimsLost], and nothing is made.
func OpenClaims(ctx context.Context, c ClaimsConfig) (*embedded.Cluster, error) {
	mounter := mount.Interface(host.Wrap(c.Node.Mounter, c.Logger))
	if mounter == nil {
		mounter = host.New(host.Config{Logger: c.Logger})
	}
	work := c.WorkDir
	if work == "" {
		work = c.RootDir
	}
	mounted := c.Mounted
	if mounted == nil {
		mounted = func(context.Context) ([]embedded.Mounted, error) { return MountedBelow(c.RootDir, mounter) }
	}
	var cluster *embedded.Cluster
	making, err := volumeMaker(c, func(ctx context.Context) ([]*v1.PersistentVolume, error) {
		return objects.List[*v1.PersistentVolume](ctx, cluster.Objects(), "PersistentVolume", "")
	})
	if err != nil {
		return nil, err
	}
	dir := c.Dir
	if dir == "" {
		dir = ClaimsDir(c.RootDir)
	}
	own := dir == ClaimsDir(c.RootDir)
	if own {
		if err := CheckClaims(c.RootDir); err != nil {
			return nil, err
		}
	}
	recorded := selfattach.Recorded{Dirs: slices.Compact([]string{attachedRecords(c.RootDir), attachedRecords(work)}), NodeName: types.NodeName(c.Node.NodeName)}
	cluster, err = embedded.Open(ctx, embedded.Config{
		Dir: dir, NodeName: c.Node.NodeName, Manager: c.Manager, Store: c.Store,
		Plugins: plugins.All(append([]volume.VolumePlugin{making}, c.Plugins...)...), Host: volume.Host{RootDir: work, Mounter: mounter, HostFiles: c.Node.HostFiles, Attachments: recorded},
		Mounted: mounted, MountedFor: c.MountedFor, Explained: c.Explained, Only: c.Only,
		LockTimeout: c.LockTimeout, Events: c.Events, Tracer: c.Node.Tracer, Logger: c.Logger,
	})
	if err == nil && own {
		markClaims(c.RootDir)
	}
	return cluster, err
}

// InBackground runs run until stop is called. The end of ctx does not end it.
// run's error is delivered once: on the channel, or by stop.
func InBackground(ctx context.Context, run func(context.Context) error) (ended <-chan error, stop func() error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	end := make(chan error, 1)
	go func() {
		end <- run(ctx)
		close(end)
	}()
	return end, func() error { cancel(); return <-end }
}

// volumeMaker is the plugin that makes volumes on this machine for storage
// classes of provisioner kubernetes.io/host-path. It makes them in VolumeDirs and
// below the root directory. A rehearsal, which does not change the machine's
// files, makes them below its own root directory only.
func volumeMaker(c ClaimsConfig, volumes func(context.Context) ([]*v1.PersistentVolume, error)) (volume.VolumePlugin, error) {
	own := hostpath.DefaultBase(c.RootDir)
	var bases []hostpath.Base
	if c.Node.HostFiles == nil {
		for _, dir := range c.VolumeDirs {
			bases = append(bases, hostpath.Base{Path: dir})
		}
	} else if err := os.MkdirAll(own.Path, 0o700); err != nil {
		return nil, err
	}
	return hostpath.New(hostpath.Config{Provision: hostpath.ProvisionConfig{Bases: append(bases, own), Volumes: volumes, Records: recordsName(c.RootDir)}}), nil
}

// recordsName names the records of a root directory on this machine. With that
// name the volumes in VolumeDirs are known even after the records are lost.
func recordsName(rootDir string) string {
	machine, err := os.ReadFile("/etc/machine-id")
	if machine = bytes.TrimSpace(machine); err != nil || len(machine) == 0 { // as in most containers
		name, err := os.Hostname()
		if err != nil {
			return ""
		}
		machine = []byte(name)
	}
	// Hashed, since machine-id(5) asks not to show the ID to others.
	hash := hmac.New(sha256.New, machine)
	hash.Write([]byte(rootDir))
	return hex.EncodeToString(hash.Sum(nil)[:16])
}
