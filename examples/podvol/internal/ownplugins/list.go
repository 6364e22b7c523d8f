package ownplugins

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/podvol/podvol/examples/podvol/internal/choice"
	"github.com/podvol/podvol/examples/podvol/internal/nodeserver"
	"github.com/podvol/podvol/examples/podvol/internal/sentences"
	"github.com/podvol/podvol/examples/podvol/internal/table"
)

// driverPatience is how long podvol csi waits for one driver.
const driverPatience = 10 * time.Second

// Config is what a command gets of its program.
type Config struct {
	Out, Err io.Writer
	Usage    Usage
	// Reported is the error of a command that has told its fault.
	Reported error
	// RootDir adds the flag of the root directory.
	RootDir func(*pflag.FlagSet, *string)
}

// listCommand is podvol csi.
type listCommand struct {
	Config
	Options
	rootDir, output string
}

// ListCommand returns the command that lists drivers.
func ListCommand(s Config) *cobra.Command {
	l := &listCommand{Config: s}
	c := &cobra.Command{
		Use:   "csi [--csi-driver SOCKET|NAME=SOCKET …] [--csi-registry DIR]",
		Short: "List CSI drivers, what they can do, and their calls under way",
		Long: "Prints the drivers that podvol run-node knows below the root directory, while it runs:\n" +
			"whether they answer, and which calls are under way, of which volume, for how long.\n" +
			"Drivers of the flags are asked who they are and what they can do on a node. Those of a\n" +
			"registry are not told that they are registered.\n" +
			"A driver that is given without its name must answer, or nothing is listed.\n\n" +
			"Exit code: 0 when all drivers answer, or their sockets wait for a first call, 1 when some\n" +
			"do not or none is registered, 2 for a wrong command line.",
		Example: "  podvol csi --csi-driver /run/csi.sock\n  podvol csi -o json",
		RunE:    func(c *cobra.Command, _ []string) error { return l.run(c.Context()) },
	}
	l.AddDrivers(c.Flags(), s.Usage)
	s.RootDir(c.Flags(), &l.rootDir)
	choice.AddOutput(c, &l.output, "table", "wide", "json", "yaml")
	return c
}

func (l *listCommand) run(ctx context.Context) error {
	rootDir, err := filepath.Abs(l.rootDir)
	if err != nil {
		return err
	}
	rows, err := nodeserver.Drivers(ctx, rootDir)
	none := errors.Is(err, nodeserver.ErrNoNode) || errors.Is(err, nodeserver.ErrNoDrivers)
	switch {
	case err == nil:
	case !l.hasDrivers() && none:
		return l.Usage("name the drivers with --csi-driver or --csi-registry, or the --root-dir of a podvol run-node: %w", err)
	case !l.hasDrivers():
		return err
	case !none:
		fmt.Fprintf(l.Err, "podvol: drivers of podvol run-node are not listed: %v\n", err)
	}
	all := true
	if l.hasDrivers() {
		own, found, err := l.look(ctx)
		if err != nil {
			return err
		}
		rows, all = append(rows, own...), found
	}
	for _, d := range rows {
		all = all && d.State != nodeserver.Silent
		if _, err := os.Lstat(d.Socket); d.State == nodeserver.Unused && errors.Is(err, fs.ErrNotExist) {
			all, d.Error = false, fmt.Sprintf("driver %s is not used yet, and its socket %s does not exist: start the driver", d.Driver, d.Socket)
		}
		if d.Error != "" {
			fmt.Fprintf(l.Err, "podvol: %s\n", d.Error)
		}
	}
	if err := l.print(rows); err != nil {
		return err
	}
	if !all {
		return l.Reported
	}
	return nil
}

// look asks the drivers of the flags. all: the registry has some, and nothing else.
func (l *listCommand) look(ctx context.Context) (rows []nodeserver.Driver, all bool, err error) {
	p, err := l.csi(ctx, slog.New(sentences.New(l.Err, slog.LevelWarn)))
	if err != nil {
		return nil, false, err
	}
	defer p.Close()
	all = true
	if l.registryDir != "" {
		unknown, err := p.Discover(ctx)
		if err != nil {
			return nil, false, fmt.Errorf("--csi-registry: %w", err)
		}
		for _, socket := range slices.Sorted(maps.Keys(unknown)) {
			all = false
			fmt.Fprintf(l.Err, "podvol: %s registers no driver: %v\n", socket, unknown[socket])
		}
		if len(p.Drivers()) == len(l.drivers) && len(unknown) == 0 {
			all = false
			fmt.Fprintf(l.Err, "podvol: no driver is registered in %s: start a driver with its node-driver-registrar, whose socket must be there, or give the driver's own socket with --csi-driver\n", l.registryDir)
		}
	}
	for _, d := range p.Drivers() {
		one, cancel := context.WithTimeout(ctx, driverPatience)
		_ = p.Connect(one, d.Name) // its status has the error
		cancel()
	}
	for _, d := range p.Drivers() {
		rows = append(rows, nodeserver.DriverOf(d, "podvol csi"))
	}
	return rows, all, nil
}

func (l *listCommand) print(rows []nodeserver.Driver) error {
	if l.output == "table" || l.output == "wide" {
		return printTable(l.Out, rows, l.output == "wide")
	}
	if rows == nil {
		rows = []nodeserver.Driver{}
	}
	return choice.Print(l.Out, l.output, rows)
}

// printTable prints a row for each driver, and below them one for each call under way.
func printTable(out io.Writer, rows []nodeserver.Driver, wide bool) error {
	drivers := table.New(out, table.Column{Head: "DRIVER"}, table.Column{Head: "VERSION", Spare: true}, table.Column{Head: "STATE", Whole: true},
		table.Column{Head: "CALLS"}, table.Column{Head: "CAPABILITIES", Spare: true}, table.Column{Head: "SOCKET"}, table.Column{Head: "KNOWN BY", Spare: true})
	calls := table.New(out, table.Column{Head: "CALL", Whole: true}, table.Column{Head: "DRIVER"}, table.Column{Head: "VOLUME"}, table.Column{Head: "FOR", Whole: true})
	if wide {
		drivers.Unlimited()
		calls.Unlimited()
	}
	var ofDrivers, ofCalls [][]string
	for _, d := range rows {
		ofDrivers = append(ofDrivers, dashed(d.Driver, d.Version, d.State, strconv.Itoa(len(d.Calls)), strings.Join(d.Capabilities, ","), d.Socket, d.KnownBy))
		for _, c := range d.Calls {
			ofCalls = append(ofCalls, dashed(c.Method, d.Driver, fmt.Sprintf("%.128s", c.Volume), time.Duration(c.Seconds*float64(time.Second)).Round(time.Second).String()))
		}
	}
	if err := drivers.Print(ofDrivers...); err != nil || len(ofCalls) == 0 {
		return err
	}
	if _, err := fmt.Fprintln(out); err != nil {
		return err
	}
	return calls.Print(ofCalls...)
}

func dashed(cells ...string) []string {
	for i, c := range cells {
		cells[i] = table.Dash(c)
	}
	return cells
}
