package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/podvol/internal/kubectlget"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/standalone"
	"github.com/podvol/podvol/volume/volumemanager"
)

// ephemeralClaims are claims that were made for pods' ephemeral volumes and go
// with these pods, as in a cluster, by the code of podvol pvc delete.
type ephemeralClaims struct {
	options changeOptions
	// whose reports whether a pod's claims are to go.
	whose func(pod types.NamespacedName, uid types.UID) bool
	// deleted is told what has gone, and what became of it.
	deleted io.Writer
	// kept is told of claims that stay because they are used.
	kept io.Writer
	wait time.Duration // for another process
}

// holderPoll is how often the holder of the root directory is asked for again.
const holderPoll = 50 * time.Millisecond

// delete deletes the claims that are not used, data and all if their reclaim
// policy says so. While podvol run-node has the claims it leaves them to that.
func (e ephemeralClaims) delete(ctx context.Context) error {
	patience, cancel := context.WithTimeout(ctx, e.wait)
	defer cancel()
	for {
		found := readStored(e.options.rootDir)
		if found.damaged != nil {
			return found.damaged
		}
		d := &deletion{streams: streams{out: e.deleted, err: e.deleted}, options: e.options, before: found, mayGo: e.mayGo}
		for _, claim := range found.claims {
			if e.isTheirs(claim) {
				d.refs = append(d.refs, volume.NewObjectRef(kubectlget.ClaimKind.Kind, claim.Namespace, claim.Name))
				d.volumes = append(d.volumes, found.volumesOf(claim)...)
			}
		}
		err := d.run(ctx)
		if busy := isHeld(err); !busy {
			return e.withoutKept(err)
		}
		if heldByRunNode(e.options.rootDir) {
			return nil // which deletes them
		}
		select {
		case <-patience.Done():
			return fmt.Errorf("the claims of ephemeral volumes stay: %w", err)
		case <-time.After(holderPoll):
		}
	}
}

func (e ephemeralClaims) isTheirs(claim *v1.PersistentVolumeClaim) bool {
	owner := metav1.GetControllerOf(claim)
	return owner != nil && owner.Kind == podKind && e.whose(types.NamespacedName{Namespace: claim.Namespace, Name: owner.Name}, owner.UID)
}

const podKind = "Pod"

// mayGo looks again, now that no other process changes claims: one of the same name
// may have been made for another pod.
func (e ephemeralClaims) mayGo(ctx context.Context, c *embedded.Cluster, ref volume.ObjectRef) bool {
	claim, err := objects.Get[*v1.PersistentVolumeClaim](ctx, c.Objects(), ref)
	return err == nil && e.isTheirs(claim)
}

// withoutKept tells of the claims that are used, which is no failure: they go
// with who uses them.
func (e ephemeralClaims) withoutKept(err error) error {
	if !errors.Is(err, embedded.ErrInUse) {
		return err
	}
	all, ok := err.(interface{ Unwrap() []error })
	if !ok {
		used, _ := errors.AsType[*volume.Failure](err)
		fmt.Fprintf(e.kept, "podvol: the claim of an ephemeral volume stays: %v\n", used)
		return nil
	}
	var left []error
	for _, each := range all.Unwrap() {
		left = append(left, e.withoutKept(each))
	}
	return errors.Join(left...)
}

// isHeld reports whether another process has the root directory, or its claims.
func isHeld(err error) bool {
	return errors.Is(err, embedded.ErrBusy) || errors.Is(err, volumemanager.ErrRootBusy)
}

// heldByRunNode reports whether it is podvol run-node that has the claims, as
// asked when they are held.
func heldByRunNode(rootDir string) bool {
	holder, _ := os.ReadFile(filepath.Join(standalone.ClaimsDir(rootDir), "holder"))
	owner, _ := os.ReadFile(filepath.Join(volumemanager.StateDir(rootDir), "lock"))
	process := func(of []byte) string { before, _, _ := strings.Cut(string(of), " ("); return before }
	return strings.Contains(string(holder), "(podvol run-node ") && process(holder) == process(owner)
}
