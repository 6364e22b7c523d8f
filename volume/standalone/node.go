package standalone

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/localtoken"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/selfattach"
	"github.com/podvol/podvol/volume/selinux"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Node is a volume manager that runs until Stop.
type Node struct {
	*volumemanager.Manager
	stop     func() error
	attacher *selfattach.Attacher // nil: no plugin attaches
	detach   func() error         // ends it
	patience time.Duration
}

// Stop ends the manager and returns its error. Mounts stay. Volumes that are not used any more
// are detached before: if that fails within [NodeConfig].DetachTimeout, the error matches
// [selfattach.ErrStillAttached], and the next node of the root directory does it. Stop must be
// called once.
func (n *Node) Stop() error {
	if n.attacher == nil {
		return n.stop()
	}
	ctx, cancel := context.WithTimeout(context.Background(), n.patience)
	defer cancel()
	return errors.Join(n.attacher.WaitForDetached(ctx), n.detach(), n.stop())
}

// WaitForDetached returns nil once all that is not used any more is detached. If ctx ends before,
// the error matches [selfattach.ErrStillAttached].
func (n *Node) WaitForDetached(ctx context.Context) error {
	if n.attacher == nil {
		return nil
	}
	return n.attacher.WaitForDetached(ctx)
}

// attachedRecords is the directory of the records of what a root directory has attached.
func attachedRecords(rootDir string) string {
	return filepath.Join(volumemanager.StateDir(rootDir), "attached")
}

// Attached returns what a root directory has attached to this machine, or may have.
func Attached(rootDir string) ([]selfattach.Attachment, error) {
	return selfattach.Inspect(attachedRecords(rootDir))
}

// attachedDir is the directory of this machine in which all roots tell of their attached volumes.
const attachedDir = "/run/podvol-attached"

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
	// DetachTimeout is how long Stop waits for volumes to be detached. 0: two minutes, as long
	// as one call of a CSI driver may take.
	DetachTimeout time.Duration
	// Events receives events about pods; nil drops them.
	Events volume.EventSink
	// Containers reports when a pod's containers are gone. Nil: the caller of
	// TearDownPod knows.
	Containers volumemanager.PodContainers
	// Adopt adopts volumes without a record.
	Adopt bool
	// Resizes is told how volumes grew on the node; nil: nobody is.
	Resizes volume.NodeResizeReporter
	// Translator is [volumemanager.Config]'s.
	Translator volume.Translator
	// Plugins replace stock plugins. The node attaches by those of them that can
	// (selfattach.CanAttach), such as CSI's of controller.ForNode.
	Plugins []volume.VolumePlugin
	// Tracer is [volumemanager.Config]'s; nil: nothing is recorded, at no cost.
	Tracer volume.Tracer
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
	all := plugins.All(c.Plugins...)
	attacher, getter, err := newAttacher(c, all)
	if err != nil {
		return nil, err
	}
	manager, err := volumemanager.New(volumemanager.Config{
		RootDir:     c.RootDir,
		NodeName:    c.NodeName,
		Objects:     c.Objects,
		Plugins:     all,
		Mounter:     c.Mounter,
		Tokens:      tokens,
		Allocatable: Machine{Objects: c.Objects, NodeName: types.NodeName(c.NodeName)},
		HostFiles:   c.HostFiles,

		SELinux:      selinux.Policy{Labels: nodeLabels(c.Logger), Mount: true}, // as kubelets since 1.37
		Containers:   c.Containers,
		Adopt:        c.Adopt,
		SetUpTimeout: c.SetUpTimeout,
		Resizes:      c.Resizes,
		Attachments:  getter,
		Translator:   c.Translator,
		Events:       c.Events,
		Tracer:       c.Tracer,
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
	n := &Node{Manager: manager, stop: stop, attacher: attacher, patience: cmp.Or(c.DetachTimeout, 2*time.Minute)}
	if attacher != nil {
		_, n.detach = InBackground(ctx, func(ctx context.Context) error { return selfattach.Run(ctx, attacher, manager) })
	}
	return n, nil
}

// newAttacher returns what attaches the volumes of all plugins; nil: no plugin needs it. The getter
// is the role by which plugins see that there is one, stock plugins too.
func newAttacher(c NodeConfig, all []volume.VolumePlugin) (a *selfattach.Attacher, getter volume.AttachmentGetter, err error) {
	if !slices.ContainsFunc(c.Plugins, selfattach.CanAttach) {
		return nil, nil, nil
	}
	a, err = selfattach.Open(selfattach.Config{Dir: attachedRecords(c.RootDir), SharedDir: attachedDir,
		NodeName: types.NodeName(c.NodeName), Plugins: all, Logger: c.Logger})
	if err != nil {
		return nil, nil, err
	}
	return a, a, nil
}
