package hostpath

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/recycler"
	"github.com/podvol/podvol/volume/internal/sharedirs"
	"github.com/podvol/podvol/volume/validation"
)

// Config is what a node's administrator opts into. Its zero value mounts
// hostPath volumes and does nothing else. It is read by [New] only, and checked
// when the plugin is initialised.
type Config struct {
	// Provision has the plugin make and delete volumes.
	Provision ProvisionConfig
	// Recycle has it empty released volumes.
	Recycle RecycleConfig
}

// ProvisionConfig is where and how volumes are made for claims. Without Bases
// the plugin is no [volume.ProvisionableVolumePlugin] and no
// [volume.DeletableVolumePlugin].
type ProvisionConfig struct {
	// Bases are the directories below which volumes may be made. A class's
	// parameter path names one of them, or a directory below one; a class without
	// it means the first. They are directories of this process, also where the
	// host has a role for its files: in a container they must have the same path
	// as on the node.
	Bases []Base
	// Mode is the mode of a volume's directory where the class has none, in Unix'
	// bits (0o2770): read, write and search, setgid and sticky; the owner must have
	// all three. 0 means 0777, since hostPath volumes are not given to a pod's
	// fsGroup, and a pod may run as any user: it is the base that should keep others
	// out.
	Mode uint32
	// OnDelete is what becomes of a volume's directory where the class does not
	// say it: "delete", "archive" or "retain". Empty means "delete".
	OnDelete string
	// Hostname is this node's label kubernetes.io/hostname, to which volumes are
	// bound that are made before a pod's node is known; empty means the node's
	// name.
	Hostname string
	// Volumes returns all PersistentVolumes on record; nil: none is asked for. With
	// it, no volume is made in or below a base while a recorded one of this node was
	// made there and its bookkeeping is missing ([ErrNoBook]): its disk seems not to
	// be mounted. And a claim gets no volume while another directory is there that
	// was made for a claim of its name, and whose PersistentVolume is not on record:
	// [ErrForgotten]. That is so in a base that is Own, and in others for the
	// directories of the same Records. What it returns is not changed.
	Volumes func(context.Context) ([]*v1.PersistentVolume, error)
	// Records names what Volumes reads, in bases where others make volumes too: it
	// is noted beside each directory that is made. Another set of records has
	// another name, and one that is lost and begun anew has the same. Empty: only
	// the directories in bases that are Own are known again.
	Records string
}

// Base is a directory below which volumes may be made.
type Base struct {
	// Path is absolute.
	Path string
	// Make makes it where it is missing, with all directories above it, of mode
	// 0700. It is not for a disk's mount point, or a path below one: while the disk
	// is not mounted, volumes would be made where it hides them later.
	Make bool
	// Namespaces are those whose claims get volumes here; none means all.
	Namespaces []string
	// Own says that volumes are made here only by those that have the same
	// PersistentVolumes on record ([ProvisionConfig].Volumes).
	Own bool
}

// DefaultBase is the base for an agent whose root directory is root: the
// directory podvol/volumes in it, its Own, which is made when it is needed.
func DefaultBase(root string) Base {
	return Base{Path: filepath.Join(root, "podvol", "volumes"), Make: true, Own: true}
}

// RecycleConfig is how this process empties released PersistentVolumes with
// reclaim policy Recycle. Without Below the plugin is no
// [volume.RecyclableVolumePlugin].
type RecycleConfig struct {
	// Below are the directories strictly below which a volume must lie, all links
	// resolved, to be emptied: no PersistentVolume can have anything else of the
	// node deleted.
	Below []string
	// Action chooses what to do; nothing is deleted by default.
	Action RecycleAction
	// Archive is the directory for [RecycleArchive]. It must be root's or the
	// agent's own, writable by no other user, and neither hold a volume nor lie in
	// one. The directory itself is made where it is missing, those above it are not.
	// Only files below the same mount can be moved there; nothing is copied. Each
	// release gets a directory of its own in it, of mode 0700, named after
	// PersistentVolume and release.
	Archive string
	// MinimumTimeout and TimeoutPerGiB are how long an emptying may take: the
	// latter for each full GiB of the volume's capacity, and no less than the
	// former. 0 means a minute and 30 seconds, as in Kubernetes.
	MinimumTimeout, TimeoutPerGiB time.Duration
	// ProgressEvery is the least time between two progress events. 0 means ten
	// seconds.
	ProgressEvery time.Duration
}

// RecycleAction is the action on a released volume's content.
type RecycleAction = recycler.Action

const (
	// RecycleDryRun only says what would be deleted; the error is a
	// *[reclaim.DryRunError].
	RecycleDryRun = recycler.DryRun
	// RecycleDelete deletes it.
	RecycleDelete = recycler.Delete
	// RecycleArchive moves it into an archive.
	RecycleArchive = recycler.Archive
)

const defaultMode = 0o777

func (c Config) check() error {
	if err := c.Provision.check(); err != nil {
		return err
	}
	return c.Recycle.check()
}

func (c ProvisionConfig) check() error {
	for _, b := range c.Bases {
		if err := validation.CheckAbsolutePath("Provision.Bases", b.Path); err != nil {
			return err
		}
		if filepath.Clean(b.Path) == "/" {
			return volume.Invalid("Provision.Bases", "must not be the root directory; use a directory of its own")
		}
	}
	if err := sharedirs.CheckMode("Provision.Mode", cmp.Or(c.Mode, defaultMode)); err != nil {
		return err
	}
	_, err := sharedirs.ParseOnDelete("Provision.OnDelete", c.OnDelete)
	return err
}

// baseOf returns the innermost base that holds a directory.
func (c ProvisionConfig) baseOf(dir string) (Base, bool) {
	var found Base
	innermost := "" // clean: how a base is spelt says nothing of how deep it lies
	for _, b := range c.Bases {
		path := filepath.Clean(b.Path)
		if pathin.In(path, dir) && len(path) > len(innermost) {
			found, innermost = b, path
		}
	}
	return found, innermost != ""
}

func (b Base) allows(namespace string) bool {
	return len(b.Namespaces) == 0 || slices.Contains(b.Namespaces, namespace)
}

func (c RecycleConfig) check() error {
	for _, dir := range c.Below {
		if err := validation.CheckAbsolutePath("Recycle.Below", dir); err != nil {
			return err
		}
	}
	if c.MinimumTimeout < 0 || c.TimeoutPerGiB < 0 {
		return volume.Invalid("Recycle.MinimumTimeout and TimeoutPerGiB", "must not be negative")
	}
	if c.Action == RecycleArchive {
		return validation.CheckAbsolutePath("Recycle.Archive", c.Archive)
	}
	return c.Action.Check("Recycle.Action")
}

// timeout is how long emptying a volume may take.
func (c RecycleConfig) timeout(pv *v1.PersistentVolume) time.Duration {
	return recycler.Timeout(pv, cmp.Or(c.MinimumTimeout, time.Minute), c.TimeoutPerGiB)
}
