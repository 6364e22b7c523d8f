// Package status prints the volumes below a root directory, for podvol status: as the podvol run-node
// knows them that keeps them, or else as the records do.
package status

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/podvol/podvol/examples/podvol/internal/choice"
	"github.com/podvol/podvol/examples/podvol/internal/live"
	"github.com/podvol/podvol/examples/podvol/internal/nodeserver"
	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Config is what the command gets of its program.
type Config struct {
	Out, Err io.Writer
	// Usage makes the error of a wrong command line.
	Usage func(format string, args ...any) error
	// Reported is the error that ends a command whose failures have been printed.
	Reported error
	// AddRootDir adds the flag of the root directory, which CheckRootDir completes.
	AddRootDir   func(*pflag.FlagSet, *string)
	CheckRootDir func(string) (string, error)
	// Warn says what is wrong with a root directory, and Check which records of claims and volumes are.
	Warn  func(rootDir string)
	Check func(rootDir string) error
}

// Command returns podvol status.
func Command(s Config) *cobra.Command {
	var rootDir, output string
	var watch bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Print the volumes below the root directory",
		Long: "Prints one row per volume below the root directory, and says which records of volumes\n" +
			"and claims are damaged or lost. It asks the podvol run-node that keeps the root\n" +
			"directory, which takes root, and shows volumes that fail or wait, too. Without one it\n" +
			"reads the records, the directories and the mount table: those have only volumes that\n" +
			"have been set up once. The last line says which of the two it was, and knownBy of JSON.\n\n" +
			"It changes nothing, takes no lock and never touches a volume, so it answers also while\n" +
			"a server does not. Pods of one name, as of several nodes, are told apart by UID and\n" +
			"node, which podvol unmount --uid and --node take. In a container whose mounts the host\n" +
			"would not see, standard error says what its manifest lacks.\n" +
			"A manifest that run-node refuses is a row of state refused, with the error, and so is\n" +
			"their directory while run-node asks whether it is the right one.\n" +
			"--watch goes on: at a terminal it redraws the table at each change, in a pipe it prints\n" +
			"the rows that change, until it is interrupted. While run-node does not answer it shows\n" +
			"the records, says so, and goes on once there is an answer.\n\n" +
			"Exit code: 0 when all volumes are mounted that a container mounts, 1 when some are not,\n" +
			"a manifest or their directory is refused, or something cannot be read or is lost.",
		RunE: func(c *cobra.Command, _ []string) error {
			rootDir, err := s.CheckRootDir(rootDir)
			if err != nil {
				return err
			}
			if !watch {
				return s.print(c.Context(), rootDir, output)
			}
			if !slices.Contains(rows.StreamFormats(), output) {
				return s.Usage("--watch prints %s, not %s", choice.List(rows.StreamFormats()), output)
			}
			return live.Show(c.Context(), live.Config{RootDir: rootDir, Mounts: table.Kernel(), Out: s.Out, Err: s.Err, Format: output})
		},
	}
	s.AddRootDir(c.Flags(), &rootDir)
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show each change as it comes, until interrupted")
	choice.AddOutput(c, &output, rows.Formats()...)
	return c
}

func (s Config) print(ctx context.Context, rootDir, output string) error {
	s.Warn(rootDir)
	recorded, unreadable := volumemanager.Inspect(rootDir, table.Kernel())
	if _, fatal := errors.AsType[*volumemanager.RootError](unreadable); fatal {
		return unreadable
	}
	volumes, unanswered, err := nodeserver.VolumesOr(ctx, rootDir, recorded, s.Err)
	if err != nil {
		return err
	}
	knownBy := nodeserver.ByNode
	if unanswered != nil {
		knownBy = nodeserver.ByRecords
	}
	// What a node that does not answer knows beside the records may have failed.
	failed := unanswered != nil && !errors.Is(unanswered, nodeserver.ErrNoNode)
	all := rows.AllOf(volumes, time.Now())
	for i := range all {
		all[i].KnownBy = knownBy
		failed = failed || !asWanted(all[i])
	}
	printer := rows.NewPrinter(output, s.Out, s.Err)
	if err := errors.Join(printer.Add(all...), printer.Close()); err != nil {
		return err
	}
	if len(all) == 0 {
		none := "No volumes below %s."
		if _, err := os.Lstat(rootDir); errors.Is(err, fs.ErrNotExist) { // it may be mistyped
			none = "No volumes: %s does not exist."
		}
		plaintext.Line(s.Err, none, rootDir)
	}
	if output == "table" || output == "wide" {
		plaintext.Line(s.Err, "Known by %s.", nodeserver.KnownBy(unanswered))
	}
	err = errors.Join(unreadable, s.Check(rootDir))
	if err == nil && failed {
		return s.Reported
	}
	return err
}

// asWanted reports whether there is nothing to do about a volume.
func asWanted(r rows.Row) bool {
	state := volumemanager.VolumeState(r.State)
	return r.Error == "" && (state == volumemanager.StateMounted || state == volumemanager.StateUnused)
}
