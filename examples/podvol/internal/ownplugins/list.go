package ownplugins

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

// driverPatience is how long podvol csi waits for one driver.
const driverPatience = 10 * time.Second

// ListCommand returns the command that lists drivers. reported is its error once it has
// told its fault.
func ListCommand(out, errOut io.Writer, usage Usage, reported error) *cobra.Command {
	var o Options
	c := &cobra.Command{
		Use:   "csi --csi-driver SOCKET|NAME=SOCKET|--csi-registry DIR [--csi-driver …]",
		Short: "List CSI drivers and what they can do",
		Long: "Asks each driver who it is and what it can do on a node, and prints a row for it.\n" +
			"Drivers of a registry are asked without being told that they are registered.\n" +
			"A driver that is given without its name must answer, or nothing is listed.\n\n" +
			"Exit code: 0 when all drivers answer, 1 when some do not, 2 for a wrong command line.",
		Example: "  podvol csi --csi-driver /run/csi.sock",
		RunE: func(c *cobra.Command, _ []string) error {
			all, err := o.list(c.Context(), out, errOut)
			if err == nil && !all {
				return reported
			}
			return err
		},
	}
	o.AddDrivers(c.Flags(), usage)
	return c
}

// list prints the drivers, and reports whether all answer.
func (o *Options) list(ctx context.Context, out, errOut io.Writer) (all bool, err error) {
	if !o.hasDrivers() {
		return false, o.usage("name the drivers with --csi-driver or --csi-registry")
	}
	p, err := o.csi(ctx, errOut)
	if err != nil {
		return false, err
	}
	defer p.Close()
	all = true
	if o.registryDir != "" {
		unknown, err := p.Discover(ctx)
		if err != nil {
			return false, err
		}
		for _, socket := range slices.Sorted(maps.Keys(unknown)) {
			all = false
			fmt.Fprintf(errOut, "podvol: %s registers no driver: %v\n", socket, unknown[socket])
		}
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "DRIVER\tVERSION\tSTATE\tCAPABILITIES\tSOCKET")
	for _, d := range p.Drivers() {
		one, cancel := context.WithTimeout(ctx, driverPatience)
		err := p.Connect(one, d.Name)
		cancel()
		if err != nil {
			all = false
			fmt.Fprintf(errOut, "podvol: %v\n", err)
		}
	}
	for _, d := range p.Drivers() {
		state := "answers"
		if !d.Connected {
			state = "silent"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", d.Name, orDash(d.Version), state, orDash(strings.Join(d.Capabilities, ",")), d.Socket)
	}
	return all, w.Flush()
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
