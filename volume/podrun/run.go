package podrun

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/standalone"
)

// Root is the root directory of a run. A *runroot.Root is one.
type Root interface {
	// Path is the directory.
	Path() string
	// Remove removes the directory, in which nothing is mounted any more.
	Remove(context.Context) error
	// Unlock leaves the directory to its repair by another process.
	Unlock()
}

// Run is one run of a program with the volumes of its pod. It is used once.
type Run struct {
	Program *Program
	// Root is the run's own root directory, which Do removes.
	Root Root
	// Node describes the node. RootDir is Root's, and Objects are Manifests'.
	Node standalone.NodeConfig
	// Claims say where the pod's claims are bound, if it has some. WorkDir, Node, Store
	// and Bound are Do's.
	Claims standalone.ClaimsConfig
	// Manifests have the pod, and the objects that its volumes refer to.
	Manifests *manifest.Set
	// Name is how others see the run that uses a claim.
	Name string
	// Timeout limits each of these steps: the binding of claims, the set-up unless SetUp
	// is given, and the tear-down. 0: five minutes.
	Timeout time.Duration

	Stdin          io.Reader
	Stdout, Stderr io.Writer

	// SetUp sets the pod's volumes up. The claims that could not be bound have their
	// reasons in unbound. Nil: SetUpPod of the node, within Timeout.
	SetUp func(ctx context.Context, node *standalone.Node, unbound standalone.UnboundClaims) error
	// DeleteEphemeral deletes the claims of the pod's ephemeral volumes that no other run
	// uses. It is called before the volumes are set up, since data of a run that was
	// killed must not be shown to this one, and after they are torn down (ended). Nil:
	// these claims stay.
	DeleteEphemeral func(ctx context.Context, ended bool) error
	// Groups is told of the groups that the volumes' files belong to and the program does
	// not have. Nil: nothing is told.
	Groups func(groups []int64)
	// Repair is the command that an error names where the root directory stays.
	Repair string

	user *embedded.User
}

// defaultTimeout is that of a Run without one.
const defaultTimeout = 5 * time.Minute

// Do binds the pod's claims, sets its volumes up, runs the program to its end, and takes
// everything down again. It takes the signals of this process: they go to the program, and
// before and after that they end the wait for each step.
//
// The code is the program's, or what shells return for a program that cannot be run, or
// [ExitFailed] where podvol has failed. An error may come with any code but 0, also after a
// program that ran: then something could not be taken down. If anything may still be
// mounted, Root stays, and the error names Repair.
func (r *Run) Do(ctx context.Context) (code int, err error) {
	signals := TakeSignals()
	defer signals.Stop()
	return r.do(ctx, signals, signals.Run)
}

// programRunner runs a program to its end.
type programRunner func(context.Context, sandbox.Config) (code int, err error)

func (r *Run) do(ctx context.Context, signals *Signals, run programRunner) (code int, err error) {
	settingUp, done := signals.Interruptible(ctx)
	code, err, left := r.atRoot(settingUp, signals, run)
	done()
	if left == nil {
		removing, done := signals.Interruptible(context.WithoutCancel(ctx))
		defer done()
		left = r.Root.Remove(removing)
	}
	if left != nil {
		// A repair needs all of it: records name possible mounts.
		r.Root.Unlock()
		err = errors.Join(err, fmt.Errorf("%s stays behind: %w; when nothing uses it any more: %s", r.Root.Path(), left, r.Repair))
	}
	if err != nil && code == 0 {
		code = ExitFailed
	}
	return code, err
}

// atRoot owns the root while the program runs; left is why something may still be mounted
// there.
func (r *Run) atRoot(ctx context.Context, signals *Signals, run programRunner) (code int, err, left error) {
	r.prepare()
	if err := r.deleteEphemeral(ctx, false); err != nil {
		return ExitFailed, err, nil
	}
	node, err := standalone.StartNode(ctx, r.Node)
	if err != nil {
		return ExitFailed, err, nil
	}
	if code, err = ExitFailed, r.setUp(ctx, node); err == nil {
		code, err = r.execute(ctx, node, run)
	}
	left = r.tearDown(context.WithoutCancel(ctx), node, signals)
	if left == nil {
		deleting, done := signals.Interruptible(context.WithoutCancel(ctx))
		defer done()
		err = errors.Join(err, r.release(), r.deleteEphemeral(deleting, true))
	}
	return code, err, errors.Join(left, node.Stop())
}

func (r *Run) pods() []*v1.Pod { return []*v1.Pod{r.Program.pod} }

// prepare completes the configurations.
func (r *Run) prepare() {
	r.Timeout = cmp.Or(r.Timeout, defaultTimeout)
	r.Node.RootDir, r.Node.Objects, r.Node.DetachTimeout = r.Root.Path(), r.Manifests, r.Timeout
	r.Node.Mounter = host.Wrap(r.Node.Mounter, r.Node.Logger) // once for the node and its claims
	if !standalone.UsesClaims(r.pods()) {
		return
	}
	r.Claims.WorkDir, r.Claims.Node, r.Claims.Store = r.Root.Path(), r.Node, objects.NewStore()
	r.Node.Objects, r.Node.Resizes = r.Claims.Store, standalone.ClosedClaims(r.Claims)
	// Others do not see the mounts at this root.
	r.Claims.Bound = func(ctx context.Context, c *embedded.Cluster) (err error) {
		r.user, err = c.Use(ctx, fmt.Sprintf("%s (process %d)", r.Name, os.Getpid()), r.pods()...)
		return err
	}
}

func (r *Run) deleteEphemeral(ctx context.Context, ended bool) error {
	if r.DeleteEphemeral == nil || !standalone.UsesClaims(r.pods()) {
		return nil
	}
	return r.DeleteEphemeral(ctx, ended)
}

// release says that the run does not use its claims any more.
func (r *Run) release() error {
	if r.user == nil {
		return nil
	}
	return r.user.Release()
}

func (r *Run) setUp(ctx context.Context, node *standalone.Node) error {
	var unbound standalone.UnboundClaims
	if standalone.UsesClaims(r.pods()) {
		// The claims outlive the run: data must never be shown to another claim by
		// the next one.
		var err error
		if unbound, err = standalone.BindClaims(ctx, r.Claims, r.Manifests, r.pods(), r.Timeout); err != nil {
			return err
		}
	}
	if r.SetUp != nil {
		return r.SetUp(ctx, node, unbound)
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	_, err := node.SetUpPod(ctx, r.Program.pod)
	return unbound.Explain(err)
}

// execute runs the program where the volumes are mounted.
func (r *Run) execute(ctx context.Context, node *standalone.Node, run programRunner) (code int, err error) {
	config, err := r.Program.Sandbox(ctx, node.Manager)
	if err != nil {
		return ExitFailed, err
	}
	if groups := node.ExtraSupplementalGroups(r.Program.pod.UID); len(groups) > 0 && r.Groups != nil {
		r.Groups(groups)
	}
	config.Stdin, config.Stdout, config.Stderr = r.Stdin, r.Stdout, r.Stderr
	return run(ctx, config)
}

// tearDown unmounts the volumes, and detaches them; another signal ends the wait for it.
func (r *Run) tearDown(ctx context.Context, node *standalone.Node, signals *Signals) error {
	ctx, done := signals.Interruptible(ctx)
	defer done()
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	if err := node.TearDownPod(ctx, r.Program.pod.UID); err != nil {
		return err
	}
	return node.WaitForDetached(ctx) // before its claims may go
}
