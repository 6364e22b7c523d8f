package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/userns"
	"github.com/podvol/podvol/volume/podrun"
)

// again are the flags by which podvol tells itself that it is in a user
// namespace that it has made.
type again struct {
	inside bool
	// missingIDs says what to do where an id is missing there.
	missingIDs string
}

const (
	insideFlag     = "inside"
	missingIDsFlag = "missing-ids"
)

func (a *again) add(flags *pflag.FlagSet) {
	flags.BoolVar(&a.inside, insideFlag, false, "")
	flags.StringVar(&a.missingIDs, missingIDsFlag, "", "")
	_ = flags.MarkHidden(insideFlag)
	_ = flags.MarkHidden(missingIDsFlag)
}

// becomeMounter makes sure that volumes can be mounted. A user who may not mount is
// given a user namespace: podvol starts itself again there. Then becomeMounter returns
// false, and the outcome of that: nil, or an *exitError. args are the arguments for that.
func becomeMounter(ctx context.Context, s streams, a again, args func() []string) (bool, error) {
	err := mayMount()
	switch {
	case a.inside && err != nil:
		// The namespace was made, and gives no rights in it.
		return false, userns.Explain(os.DirFS("/proc/sys"), err)
	case a.inside:
		return shareMounts()
	case errors.Is(err, errMayNotMount):
		return false, runInUserNamespace(ctx, s, args)
	}
	return err == nil, err
}

// shareMounts makes propagation work as on most machines. On a machine itself it
// would change that for everybody.
func shareMounts() (bool, error) {
	ids, err := userns.UIDs()
	if err != nil {
		return false, err
	}
	if ids.Has(math.MaxUint32 - 1) { // the last of all, which cannot be handed on
		return false, usagef("--%s is for podvol itself, in a user namespace that it has made; leave it out", insideFlag)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return false, userns.Explain(os.DirFS("/proc/sys"), fmt.Errorf("share the mounts of the new namespace: %w", err))
	}
	return true, nil
}

// runInUserNamespace starts podvol again in a user namespace to its end. The error is
// an *exitError for every exit code but 0, and has been printed there.
func runInUserNamespace(ctx context.Context, s streams, args func() []string) error {
	signals := podrun.TakeSignals()
	defer signals.Stop()
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("finding out the working directory: %w", err)
	}
	code, err := signals.RunInUserNamespace(ctx, func(missing string) sandbox.Config {
		given := args()
		return sandbox.Config{
			Args: append([]string{executable(), given[0], "--" + insideFlag, "--" + missingIDsFlag, missing}, given[1:]...), Env: os.Environ(), Dir: dir,
			Stdin: s.in, Stdout: plaintext.AsGiven(s.out), Stderr: plaintext.AsGiven(s.err),
		}
	})
	switch {
	case errors.Is(err, sandbox.ErrNoIDs), errors.Is(err, sandbox.ErrNoNamespace), errors.Is(err, sandbox.ErrNotPermitted):
		return err
	case err != nil || code != 0:
		return &exitError{code, err}
	}
	return nil
}
