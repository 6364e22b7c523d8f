package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/plugins/hostpath"
	"github.com/podvol/podvol/volume/volumemanager"
)

// clusterDir is where the claims and PersistentVolumes of a root directory are
// kept.
func clusterDir(rootDir string) string {
	return filepath.Join(volumemanager.StateDir(rootDir), "claims")
}

// clusterConfig is what differs between the commands that bind claims.
type clusterConfig struct {
	rootDir string // whose claims they are
	workDir string // the plugins' root directory, if another
	// claimsDir is where the claims are kept, if not where the root directory's are.
	claimsDir string
	node      nodeConfig
	store     *objects.Store
	manager   string // who applies
	events    persistentvolume.EventRecorder
	wait      time.Duration // for another process; 0: the library's own
	log       *slog.Logger

	volumeDirs []string              // where volumes may be made, beside the root directory
	plugins    []volume.VolumePlugin // in place of stock ones
	mounted    func(context.Context) ([]embedded.Mounted, error)
	mountedFor mountedForFunc // nil: mounted is asked
	explained  func(types.NamespacedName)
	only       func(volume.ObjectRef) bool                    // nil: everything is worked on
	bound      func(context.Context, *embedded.Cluster) error // before bindClaims lets others at the claims
}

// openCluster opens the claims of a root directory. The plugins are instances of
// its own.
func openCluster(ctx context.Context, c clusterConfig) (*embedded.Cluster, error) {
	mounter := c.node.mounter
	if mounter == nil {
		mounter = mount.New(mount.Config{Logger: c.log})
	}
	work := c.workDir
	if work == "" {
		work = c.rootDir
	}
	mounted := c.mounted
	if mounted == nil {
		mounted = func(context.Context) ([]embedded.Mounted, error) { return mountedBelow(c.rootDir, mounter) }
	}
	var cluster *embedded.Cluster
	making, err := volumeMaker(c, func(ctx context.Context) ([]*v1.PersistentVolume, error) {
		return objects.List[*v1.PersistentVolume](ctx, cluster.Objects(), "PersistentVolume", "")
	})
	if err != nil {
		return nil, err
	}
	dir, ledger := c.claimsDir, ""
	if dir == "" {
		dir, ledger = clusterDir(c.rootDir), filepath.Join(volumemanager.StateDir(c.rootDir), "bindings")
	}
	cluster, err = embedded.Open(ctx, embedded.Config{
		Dir: dir, Ledger: ledger, NodeName: c.node.nodeName, Manager: c.manager, Store: c.store,
		Plugins: plugins.All(append([]volume.VolumePlugin{making}, c.plugins...)...), Host: volume.Host{RootDir: work, Mounter: mounter, HostFiles: c.node.hostFiles},
		Mounted: mounted, MountedFor: c.mountedFor, Explained: c.explained, Only: c.only,
		LockTimeout: c.wait, Events: c.events, Logger: c.log,
	})
	return cluster, err
}

// inBackground runs something until stop is called, whatever becomes of ctx. How it
// ended is told once: on the channel, or by stop.
func inBackground(ctx context.Context, run func(context.Context) error) (ended <-chan error, stop func() error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	end := make(chan error, 1)
	go func() {
		end <- run(ctx)
		close(end)
	}()
	return end, func() error { cancel(); return <-end }
}

// volumeMaker is the plugin that makes volumes on this machine for storage classes
// of provisioner kubernetes.io/host-path: in directories that are named for it,
// and below the root directory. A rehearsal, which leaves the machine's files
// alone, makes them below its own root directory and nowhere else.
func volumeMaker(c clusterConfig, volumes func(context.Context) ([]*v1.PersistentVolume, error)) (volume.VolumePlugin, error) {
	own := hostpath.DefaultBase(c.rootDir)
	var bases []hostpath.Base
	if c.node.hostFiles == nil {
		for _, dir := range c.volumeDirs {
			bases = append(bases, hostpath.Base{Path: dir})
		}
	} else if err := os.MkdirAll(own.Path, 0o700); err != nil {
		return nil, err
	}
	return hostpath.New(hostpath.Config{Provision: hostpath.ProvisionConfig{Bases: append(bases, own), Volumes: volumes, Records: recordsName(c.rootDir)}}), nil
}

// recordsName names the records of a root directory on this machine, so that what
// was made for them in a --volume-dir is known also after they are lost.
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

// mountedBelow returns what is mounted below a root directory, as the node has
// written it down. While something of that cannot be read, there may be more, and
// the error is an *[embedded.IncompleteError].
func mountedBelow(rootDir string, mounter mount.Interface) ([]embedded.Mounted, error) {
	table, err := mount.TableOf(mounter)
	if err != nil {
		return nil, err
	}
	rows, err := volumemanager.Inspect(rootDir, table)
	if _, fatal := errors.AsType[*volumemanager.RootError](err); fatal {
		return nil, err
	}
	return mountedRows(rows), incomplete(err)
}

// incomplete says that an error has hidden something that may be mounted.
func incomplete(err error) error {
	if err == nil {
		return nil
	}
	return &embedded.IncompleteError{Err: err}
}

func mountedRows(rows []volumemanager.VolumeStatus) []embedded.Mounted {
	all := make([]embedded.Mounted, 0, len(rows))
	for _, v := range rows {
		all = append(all, embedded.Mounted{Pod: v.Pod, PodUID: v.PodUID, Volume: volumeName(v), Claim: v.Claim})
	}
	return all
}

// volumeName is the PersistentVolume that is mounted, or may be: a volume whose
// record is lost is known by its directory alone, which has that name. It is empty
// for a volume of the pod's own.
func volumeName(v volumemanager.VolumeStatus) string {
	if v.PersistentVolume == "" && v.Found {
		return filepath.Base(v.Path)
	}
	return v.PersistentVolume
}
