package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/volumemanager"
)

// problemDeadRun is what a podvol run left that was killed.
const problemDeadRun volumemanager.ProblemKind = "run of a dead process"

// checkRuns lists the runs whose process is gone.
func checkRuns(rootDir string, list *problemList) error {
	dead, done, err := deadRuns(rootDir)
	defer done()
	for _, r := range dead {
		list.add(r.problem(), false, nil)
	}
	return err
}

// repairRuns tears down what such runs have left, and removes their root
// directories. One that cannot be removed holds up no other.
func repairRuns(ctx context.Context, rootDir string, log *slog.Logger, list *problemList) error {
	dead, done, err := deadRuns(rootDir)
	defer done()
	if err != nil {
		return err
	}
	for _, r := range dead {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p := r.problem()
		list.add(p, true, r.clearUp(ctx, log))
	}
	removeEmptyPlace(rootDir) // a run may have failed before it had a root directory
	return nil
}

func (r *runRoot) problem() volumemanager.Problem {
	p := volumemanager.Problem{
		Kind: problemDeadRun, Path: r.path(),
		Err:    errors.New("a podvol run has ended and left its root directory: it was killed, or could not take its volumes down"),
		Repair: "tear down what is left of its volumes and remove the directory",
	}
	table, err := mount.KernelTable()
	if err != nil {
		return p
	}
	volumes, _ := volumemanager.Inspect(r.path(), table) // what cannot be read, the repair will say
	if len(volumes) > 0 {
		p.Pod, p.PodUID = volumes[0].Pod, volumes[0].PodUID
		p.Err = fmt.Errorf("%w, which has %d volumes", p.Err, len(volumes))
	}
	return p
}

// clearUp takes the root over as the next owner would, tears everything down
// and removes it.
func (r *runRoot) clearUp(ctx context.Context, log *slog.Logger) error {
	err := tearDownAll(ctx, r.path(), log)
	if err != nil {
		return err
	}
	return r.remove(ctx)
}

func tearDownAll(ctx context.Context, rootDir string, log *slog.Logger) error {
	node, err := startNode(ctx, nodeConfig{rootDir: rootDir, nodeName: "localhost", objects: objects.NewStore(), log: log})
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
	return errors.Join(append(errs, node.Damaged(), node.stop())...)
}
