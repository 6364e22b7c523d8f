// Command podvol mounts the volumes of the pods in a manifest on this machine,
// shows them, and unmounts them again.
//
//	podvol mount   -f pod.yaml    mount, and print where each volume is
//	podvol status                 print the mounted volumes
//	podvol explain POD/VOLUME     say all that is known of a pod's volumes
//	podvol unmount -f pod.yaml    unmount
//	podvol fsck                   look for leftovers, and repair them
//	podvol run -f pod.yaml -- CMD run a command with the volumes of a container
//	podvol render -f pod.yaml     print the files of volumes as an archive, without a mount
//	podvol run-node -f DIR        keep the pods of a directory of manifests mounted
//	podvol pvc                    print claims as kubectl does; delete them
//	podvol pv                     the same for PersistentVolumes; release them
//	podvol discover --dir DIR     print the disks mounted there as PersistentVolumes
//	podvol plugins                list the volume plugins, and what this machine lacks
//	podvol version                print of what this program is made
//
// It is the main job of the podvol library as a program. Its commands parse flags, call
// the library and print: run-node calls volume/nodeagent, run calls volume/podrun, and
// all open the root directory with volume/standalone.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/examples/podvol/internal/choice"
	"github.com/podvol/podvol/examples/podvol/internal/completion"
	"github.com/podvol/podvol/examples/podvol/internal/explain"
	"github.com/podvol/podvol/examples/podvol/internal/ownplugins"
	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/examples/podvol/internal/pluginlist"
	"github.com/podvol/podvol/examples/podvol/internal/progress"
	"github.com/podvol/podvol/examples/podvol/internal/sentences"
	"github.com/podvol/podvol/examples/podvol/internal/status"
	"github.com/podvol/podvol/examples/podvol/internal/table"
	"github.com/podvol/podvol/examples/podvol/internal/version"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/volume/podrun"
	"github.com/podvol/podvol/volume/volumemanager"
)

func main() {
	sandbox.Main() // run starts itself again in new namespaces
	ctx := context.Background()
	if ending := podrun.NotIgnored(os.Interrupt, unix.SIGTERM); len(ending) > 0 {
		var stop func()
		ctx, stop = signal.NotifyContext(ctx, ending...)
		defer stop()
		context.AfterFunc(ctx, stop) // a second signal ends the process at once
	}
	// A reader that goes away must not end a mount half-way; the exit code
	// has it in the end.
	signal.Ignore(unix.SIGPIPE)
	os.Exit(run(ctx, os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}

// streams are where a command reads and writes: data goes to out, all else to
// err.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// logger writes warnings as sentences, for people who wait for the command to end.
func (s streams) logger() *slog.Logger { return slog.New(sentences.New(s.err, slog.LevelWarn)) }

func isTerminal(w io.Writer) bool { return table.TerminalWidth(w) > 0 }

// fail says why a command has failed: each of joined errors has a line of its own.
// Nothing is said where all that has failed is that nobody reads the output any more.
func (s streams) fail(err error) {
	if !isUnread(err) {
		s.tell(strings.TrimSpace(err.Error()))
	}
}

// tell writes what may have several lines, such as the faults of a file.
func (s streams) tell(text string) { _ = table.Paragraph(s.err, "", "podvol: "+text) }

// say writes one sentence, whatever the names in it are.
func (s streams) say(format string, args ...any) {
	table.Sentence(s.err, "podvol: %s", fmt.Sprintf(format, args...))
}

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // a volume, or the operation, failed
	exitUsage  = 2 // the command line, the root directory or a manifest is wrong; nothing was touched
)

// errReported ends a command whose failures have been printed already.
var errReported = errors.New("some volumes failed")

// usageError marks what the user can mend in the command line or the manifest.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

func run(ctx context.Context, args []string, s streams) int {
	s.out, s.err = plaintext.Writer(s.out), progress.On(plaintext.Writer(s.err))
	ctx, closeConnections := ownplugins.KeepConnections(ctx)
	defer closeConnections()
	root := rootCommand(s)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if own, ok := errors.AsType[*exitError](err); ok {
		if own.err != nil && !errors.Is(own.err, errReported) {
			s.fail(own.err)
		}
		return own.code
	}
	usage := isUsage(err)
	if usage || !errors.Is(err, errReported) {
		s.fail(err)
	}
	if usage {
		return exitUsage
	}
	return exitFailed
}

// isUnread reports whether an error says only that the reader of standard output is gone, as head
// is once it has its lines.
func isUnread(err error) bool {
	switch e := err.(type) {
	case *os.PathError:
		return e.Path == os.Stdout.Name() && errors.Is(e.Err, unix.EPIPE)
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !isUnread(err) })
	case interface{ Unwrap() error }:
		return isUnread(e.Unwrap())
	}
	return false
}

// isUsage reports whether an error is the user's to mend in what he has written. A full disk is not,
// whatever it was that could not be written, nor is an interrupt.
func isUsage(err error) bool {
	for _, other := range []error{unix.ENOSPC, unix.EDQUOT, context.Canceled} {
		if errors.Is(err, other) {
			return false
		}
	}
	_, usage := errors.AsType[*usageError](err)
	_, root := errors.AsType[*volumemanager.RootError](err)
	return usage || root
}

func rootCommand(s streams) *cobra.Command {
	root := &cobra.Command{
		Use:           "podvol",
		Short:         "Mount the volumes of pods on this machine",
		SilenceErrors: true,
		SilenceUsage:  true,
		// A wrong word is a usage error; without Args cobra prints help for it.
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(c, args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(mountCommand(s), unmountCommand(s), fsckCommand(s), runCommand(s), renderCommand(s), runNodeCommand(s), pvcCommand(s), pvCommand(s), discoverCommand(s),
		withoutArgs(status.Command(status.Config{Out: s.out, Err: s.err, Usage: usagef, Reported: errReported, AddRootDir: addRootDir, CheckRootDir: checkRootDir,
			Warn: func(rootDir string) { warnHidden(s.err, rootDir) }, Check: checkStored})),
		explain.Command(explain.Config{Out: s.out, Err: s.err, Usage: usagef, Reported: errReported, AddRootDir: addRootDir, CheckRootDir: checkRootDir}),
		withoutArgs(version.Command(s.out)), withoutArgs(pluginlist.Command(s.out, ownplugins.Known)), withoutArgs(ownplugins.ListCommand(ownplugins.Config{Out: s.out, Err: s.err, Usage: usagef, Reported: errReported, RootDir: addRootDir})))
	completion.Flags(root)
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		switch c.Name() { // which take a wrong word for a wish for help
		case "completion":
			c.Args, c.RunE = root.Args, root.RunE
		case "help":
			c.Args = helpArgs
		}
	}
	return root
}

// helpArgs refuses words that are no command.
func helpArgs(help *cobra.Command, args []string) error {
	c, words, err := help.Root().Find(args)
	if err == nil && len(words) > 0 && c.HasSubCommands() {
		return unknownCommand(c, words[0])
	}
	return err
}

func unknownCommand(root *cobra.Command, word string) error {
	return usagef("unknown command %q%s; see %s --help", word, choice.MeantCommand(root, word), root.CommandPath())
}

// flagError is the error of a wrong flag.
func flagError(c *cobra.Command, err error) error {
	if words := c.Flags().Args(); !c.HasParent() && len(words) > 0 {
		return unknownCommand(c, words[0]) // whose flags are unknown, too
	}
	return usagef("%s%s; see %s --help", plaintext.Cell(err.Error()), choice.MeantFlag(c, err), c.CommandPath())
}

func withoutArgs(c *cobra.Command) *cobra.Command {
	c.Args = noArgs
	return c
}

// noArgs refuses arguments that are no flags.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	advice := ""
	if c.Flag("filename") != nil {
		advice = "; name manifests with -f"
	}
	return usagef("%s takes no arguments, got %q%s", c.CommandPath(), args[0], advice)
}
