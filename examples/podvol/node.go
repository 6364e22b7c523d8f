package main

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
	"github.com/podvol/podvol/volume/volumemanager"
)

// node is a volume manager that runs for as long as the command does.
type node struct {
	*volumemanager.Manager
	stop func() error
}

// nodeConfig is what differs between the commands.
type nodeConfig struct {
	rootDir, nodeName string
	objects           objects.Source
	mounter           mount.Interface
	hostFiles         volume.HostFiles
	setUpTimeout      time.Duration               // of one attempt; 0 is the manager's own
	events            volume.EventSink            // nil: nobody is told
	containers        volumemanager.PodContainers // nil: whoever calls TearDownPod
	adopt             bool
	plugins           []volume.VolumePlugin // in place of stock ones
	log               *slog.Logger
}

// startNode starts a manager and returns when it owns the root directory.
func startNode(ctx context.Context, c nodeConfig) (*node, error) {
	tokens := localtoken.New(filepath.Join(volumemanager.StateDir(c.rootDir), "token.key"))
	tokens.NodeName = c.nodeName
	tokens.ServiceAccountUID = func(ctx context.Context, namespace, name string) (types.UID, error) {
		account, err := objects.Get[*v1.ServiceAccount](ctx, c.objects, volume.NewObjectRef("ServiceAccount", namespace, name))
		if err != nil {
			return "", err
		}
		return account.UID, nil
	}
	manager, err := volumemanager.New(volumemanager.Config{
		RootDir:     c.rootDir,
		NodeName:    c.nodeName,
		Objects:     c.objects,
		Plugins:     plugins.All(c.plugins...),
		Mounter:     c.mounter,
		Tokens:      tokens,
		Allocatable: machine{objects: c.objects, node: types.NodeName(c.nodeName)},
		HostFiles:   c.hostFiles,

		SELinux:      nodeLabels(c.log),
		SELinuxMount: true, // as kubelets since 1.37
		Containers:   c.containers,
		Adopt:        c.adopt,
		SetUpTimeout: c.setUpTimeout,
		Events:       c.events,
		Logger:       c.log,
	})
	if err != nil {
		return nil, err
	}
	// The manager outlives an interrupt: what is under way is finished or
	// reported, and then stop ends it.
	_, stop := inBackground(ctx, manager.Run)
	if err := manager.WaitForRecovery(ctx); err != nil {
		if runErr := stop(); runErr != nil {
			return nil, runErr // why it stopped, such as a root in use
		}
		return nil, fmt.Errorf("waiting for %s: %w", c.rootDir, err)
	}
	return &node{Manager: manager, stop: stop}, nil
}
