package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/podrun/runroot"
	"github.com/podvol/podvol/volume/standalone"
	"github.com/podvol/podvol/volume/volumemanager"
)

// problemDeadRun is what a podvol run left that was killed.
const problemDeadRun volumemanager.ProblemKind = "run of a dead process"

// checkRuns lists the runs whose process is gone.
func checkRuns(rootDir string, list *problemList) error {
	dead, done, err := runsOf(rootDir).Dead()
	defer done()
	for _, r := range dead {
		list.add(problemOf(r), false, nil)
	}
	return err
}

// repairRuns tears down what such runs have left, and removes their root
// directories. One that cannot be removed holds up no other.
func repairRuns(ctx context.Context, rootDir string, log *slog.Logger, list *problemList) error {
	dead, done, err := runsOf(rootDir).Dead()
	defer done()
	if err != nil {
		return err
	}
	for _, r := range dead {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p := problemOf(r)
		list.add(p, true, clearUp(ctx, r, log))
	}
	runsOf(rootDir).RemoveEmpty() // a run may have failed before it had a root directory
	return nil
}

func problemOf(r *runroot.Root) volumemanager.Problem {
	p := volumemanager.Problem{
		Kind: problemDeadRun, Path: r.Path(),
		Err:    errors.New("a podvol run has ended and left its root directory: it was killed, or could not take its volumes down"),
		Repair: "tear down what is left of its volumes and remove the directory",
	}
	mounts := table.Kernel()
	volumes, _ := volumemanager.Inspect(r.Path(), mounts) // what cannot be read, the repair will say
	if len(volumes) > 0 {
		p.Pod, p.PodUID = volumes[0].Pod, volumes[0].PodUID
		p.Err = fmt.Errorf("%w, which has %d volumes", p.Err, len(volumes))
	}
	return p
}

// clearUp takes the root over as the next owner would, tears everything down
// and removes it.
func clearUp(ctx context.Context, r *runroot.Root, log *slog.Logger) error {
	err := tearDownAll(ctx, r.Path(), log)
	if err != nil {
		return err
	}
	return r.Remove(ctx)
}

func tearDownAll(ctx context.Context, rootDir string, log *slog.Logger) error {
	node, err := standalone.StartNode(ctx, standalone.NodeConfig{RootDir: rootDir, NodeName: "localhost", Objects: objects.NewStore(), Logger: log})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, kubeletPodWait)
	defer cancel()
	var errs []error
	done := make(map[types.UID]bool)
	for _, v := range node.Explain() {
		if !done[v.PodUID] {
			done[v.PodUID] = true
			errs = append(errs, node.TearDownPod(ctx, v.PodUID))
		}
	}
	// What its records have lost may be here still.
	return errors.Join(append(errs, node.Damaged(), node.Stop())...)
}
