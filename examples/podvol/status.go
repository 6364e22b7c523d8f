package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/podvol/podvol/examples/podvol/internal/choice"
	"github.com/podvol/podvol/examples/podvol/internal/live"
	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/propagation"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume/volumemanager"
)

func statusCommand(s streams) *cobra.Command {
	var rootDir, output string
	var watch bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Print the volumes below the root directory",
		Long: "Prints one row per volume below the root directory, from its records, its\n" +
			"directories and the mount table, and says which records of volumes and claims are\n" +
			"damaged or lost. It changes nothing, takes no lock and never\n" +
			"touches a volume, so it answers also while a server does not. What run-node\n" +
			"knows of servers is in its /explain. Pods of one name, as of several nodes, are told\n" +
			"apart by UID and node, which podvol unmount --uid and --node take. In a container\n" +
			"whose mounts the host would not see, standard error says what its manifest lacks.\n" +
			"--watch goes on: at a terminal it redraws the table at each change, in a pipe it prints\n" +
			"the rows that change, until it is interrupted. It asks the podvol run-node that runs.\n" +
			"Without --watch no run-node is asked: volumes that have never been set up, since they\n" +
			"fail or wait, have no record and no row. podvol explain POD shows them, too.\n\n" +
			"Exit code: 0 when all volumes are mounted, 1 when some are not, or something cannot\n" +
			"be read or is lost.",
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if watch {
				return watchStatus(c.Context(), s, rootDir, output)
			}
			return status(s, rootDir, output)
		},
	}
	addRootDir(c.Flags(), &rootDir)
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show each change as it comes, until interrupted")
	choice.AddOutput(c, &output, rows.Formats()...)
	return c
}

func watchStatus(ctx context.Context, s streams, rootDir, output string) error {
	rootDir, err := checkRootDir(rootDir)
	if err != nil {
		return err
	}
	if !slices.Contains(rows.StreamFormats(), output) {
		return usagef("--watch prints %s, not %s", choice.List(rows.StreamFormats()), output)
	}
	return live.Show(ctx, live.Config{RootDir: rootDir, Mounts: table.Kernel(), Out: s.out, Err: s.err, Format: output})
}

func status(s streams, rootDir, output string) error {
	rootDir, err := checkRootDir(rootDir)
	if err != nil {
		return err
	}
	printer := rows.NewPrinter(output, s.out, s.err)
	warnHidden(s.err, rootDir)
	mounts := table.Kernel()
	volumes, unreadable := volumemanager.Inspect(rootDir, mounts)
	if _, fatal := errors.AsType[*volumemanager.RootError](unreadable); fatal {
		return unreadable
	}
	failed, shared, all := false, sharedNames(volumes), []rows.Row(nil)
	for _, v := range volumes {
		row := rows.Of(v)
		if shared[v.Pod] {
			row.PodUID, row.Node = string(v.PodUID), string(v.NodeName)
		}
		failed = failed || v.Err != nil || v.State != volumemanager.StateMounted
		all = append(all, row)
	}
	if err := errors.Join(printer.Add(all...), printer.Close()); err != nil {
		return err
	}
	if len(volumes) == 0 {
		fmt.Fprintf(s.err, "No volumes below %s.\n", rootDir)
	}
	err = errors.Join(unreadable, checkStored(rootDir))
	if err == nil && failed {
		return errReported
	}
	return err
}

// warnHidden says if the host does not see mounts that are made here. What cannot be
// found out is no warning: this command mounts nothing.
func warnHidden(out io.Writer, rootDir string) {
	if w, err := propagation.Of(host.New(host.Config{}), rootDir); err == nil && w != nil {
		fmt.Fprintf(out, "podvol: warning: %s; %s\n", w, w.Advice())
	}
}
