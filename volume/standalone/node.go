package standalone

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/localtoken"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/selinux"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Node is a volume manager that runs until Stop.
type Node struct {
	*volumemanager.Manager
	stop func() error
}

// Stop ends the manager and returns its error. Mounts stay. It must be called
// once.
func (n *Node) Stop() error { return n.stop() }

// NodeConfig describes a node and its root directory.
type NodeConfig struct {
	// RootDir is the absolute path below which volumes are mounted.
	RootDir string
	// NodeName is the node's name.
	NodeName string
	// Objects has the objects that volumes refer to, such as config maps.
	Objects objects.Source
	// Mounter mounts. Nil: the kernel's mounter.
	Mounter mount.Interface
	// HostFiles makes files outside the root directory. Nil: the machine's files.
	HostFiles volume.HostFiles
	// SetUpTimeout limits one attempt. 0: the manager's default.
	SetUpTimeout time.Duration
	// Events receives events about pods; nil drops them.
	Events volume.EventSink
	// Containers reports when a pod's containers are gone. Nil: the caller of
	// TearDownPod knows.
	Containers volumemanager.PodContainers
	// Adopt adopts volumes without a record.
	Adopt bool
	// Resizes is told how volumes grew on the node; nil: nobody is.
	Resizes volume.NodeResizeReporter
	// Plugins replace stock plugins.
	Plugins []volume.VolumePlugin
	// Logger may be nil.
	Logger *slog.Logger
}

// StartNode starts a manager and returns when it owns the root directory. The
// manager has tokens of a key below the root directory, this machine's memory and
// processors, and its SELinux labels. The end of ctx ends the wait for the root
// directory, not the node. If the root directory cannot be used, the error is a
// *[volumemanager.RootError].
func StartNode(ctx context.Context, c NodeConfig) (*Node, error) {
	tokens := localtoken.New(filepath.Join(volumemanager.StateDir(c.RootDir), "token.key"))
	tokens.NodeName = c.NodeName
	tokens.ServiceAccountUID = func(ctx context.Context, namespace, name string) (types.UID, error) {
		account, err := objects.Get[*v1.ServiceAccount](ctx, c.Objects, volume.NewObjectRef("ServiceAccount", namespace, name))
		if err != nil {
			return "", err
		}
		return account.UID, nil
	}
	manager, err := volumemanager.New(volumemanager.Config{
		RootDir:     c.RootDir,
		NodeName:    c.NodeName,
		Objects:     c.Objects,
		Plugins:     plugins.All(c.Plugins...),
		Mounter:     c.Mounter,
		Tokens:      tokens,
		Allocatable: Machine{Objects: c.Objects, NodeName: types.NodeName(c.NodeName)},
		HostFiles:   c.HostFiles,

		SELinux:      selinux.Policy{Labels: nodeLabels(c.Logger), Mount: true}, // as kubelets since 1.37
		Containers:   c.Containers,
		Adopt:        c.Adopt,
		SetUpTimeout: c.SetUpTimeout,
		Resizes:      c.Resizes,
		Events:       c.Events,
		Logger:       c.Logger,
	})
	if err != nil {
		return nil, err
	}
	// The manager outlives an interrupt. Operations under way are finished or
	// reported; then stop ends it.
	_, stop := InBackground(ctx, manager.Run)
	if err := manager.WaitForRecovery(ctx); err != nil {
		if runErr := stop(); runErr != nil {
			return nil, runErr // why it stopped, such as a root in use
		}
		return nil, fmt.Errorf("waiting for %s: %w", c.RootDir, err)
	}
	return &Node{Manager: manager, stop: stop}, nil
}
