// Command csidriver is a CSI driver that anybody can start: its volumes are directories,
// or image files on loop devices. It is for trying podvol, or any other program that
// calls CSI drivers, without a cluster and without storage.
//
//	csidriver --socket /run/csi.sock --dir /var/lib/csidriver
//	csidriver --socket /run/csi.sock --dir /var/lib/csidriver --disk loop
//	csidriver --socket /run/csi.sock -- podvol run -f testdata/csi/notes.yaml --csi-driver /run/csi.sock
//
// With a command it serves until that ends, and ends with its code. Without a directory it has a
// temporary one then.
//
// A volume that was not created is made with its first use, so that a PersistentVolume
// can have any volumeHandle. With --log each call is printed, without secrets. The
// program ends with SIGTERM or SIGINT. Mounts and volumes stay.
//
// It needs the rights to mount. The calls of the services are in package csitest.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/removetree"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

func main() {
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "csidriver:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		if ended, ok := errors.AsType[*exec.ExitError](err); ok && ended.ExitCode() > 0 {
			os.Exit(ended.ExitCode()) // it has said why
		}
		fmt.Fprintln(os.Stderr, "csidriver:", err)
		os.Exit(1)
	}
}

// options are the command line.
type options struct {
	socket   string
	register string // the registrar's socket; empty: none
	log      bool
	command  []string // to serve for; empty: until a signal
	config   csitest.Config
}

func parse(args []string, usage io.Writer) (*options, error) {
	o := &options{}
	o.config.Capabilities = csitest.AllCapabilities()
	flags := flag.NewFlagSet("csidriver", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.StringVar(&o.socket, "socket", "", "the Unix socket to serve on")
	flags.StringVar(&o.register, "register", "", "a second socket in a node's plugins_registry, by which the driver registers itself")
	flags.StringVar(&o.config.Dir, "dir", "", "the directory that holds the volumes (default with a command: a temporary one)")
	flags.StringVar(&o.config.Name, "name", csitest.DefaultName, "the driver's name")
	flags.StringVar(&o.config.NodeID, "node", "node1", "the node's name as the driver knows it")
	flags.BoolVar(&o.log, "log", false, "print each call")
	flags.BoolVar(&o.config.Capabilities.Attach, "attach", false, "volumes must be attached to the node")
	flags.BoolVar(&o.config.Capabilities.Stage, "stage", true, "volumes are staged once for the node")
	strict := flags.Bool("strict", false, "an unknown volume is NotFound, and not made")
	flags.Func("disk", "the kind of volumes: directory or loop (default directory)", func(disk string) error {
		o.config.Disk = csitest.Disk(disk)
		if o.config.Disk != csitest.Directory && o.config.Disk != csitest.Loop {
			return errors.New("must be directory or loop")
		}
		return nil
	})
	var names []string
	for _, m := range csitest.Misbehaviours() {
		names = append(names, string(m))
	}
	flags.Func("misbehave", "a fault of a real driver to have, repeatable: "+strings.Join(names, ", "), func(name string) error {
		for _, m := range csitest.Misbehaviours() {
			if string(m) == name {
				o.config.Misbehaviours = append(o.config.Misbehaviours, m)
				return nil
			}
		}
		return errors.New("there is no such fault")
	})
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	o.config.CreateOnUse = !*strict
	rest := flags.Args()
	if before := len(args) - len(rest) - 1; before >= 0 && args[before] == "--" {
		o.command, rest = rest, nil
	}
	return o, o.complete(rest)
}

// complete checks what the flags cannot check by themselves.
func (o *options) complete(rest []string) (err error) {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unexpected argument %q", rest[0])
	case o.socket == "":
		return errors.New("--socket is missing")
	case o.config.Dir == "" && len(o.command) == 0:
		return errors.New("--dir is missing")
	}
	if o.socket, err = filepath.Abs(o.socket); err != nil || o.config.Dir == "" {
		return err
	}
	o.config.Dir, err = filepath.Abs(o.config.Dir)
	return err
}

// run serves the driver until ctx ends, or the command.
func run(ctx context.Context, o *options, out io.Writer) (err error) {
	if o.config.Dir == "" {
		if o.config.Dir, err = os.MkdirTemp("", "csidriver-"); err != nil {
			return err
		}
		defer func() {
			parent, name := filepath.Split(o.config.Dir)
			err = errors.Join(err, removetree.Remove(context.WithoutCancel(ctx), parent, name))
		}()
	}
	driver := csitest.New(o.config)
	if o.log {
		show(driver, out)
	}
	if err := driver.Start(o.socket); err != nil {
		return err
	}
	c := driver.Config()
	fmt.Fprintf(out, "%s %s serves %s volumes below %s on %s\n", c.Name, c.Version, c.Disk, c.Dir, o.socket)
	if o.register == "" {
		return errors.Join(o.work(ctx), driver.Stop())
	}
	registrar := &csitest.Registrar{Name: c.Name, Endpoint: o.socket}
	if err := registrar.Start(o.register); err != nil {
		return errors.Join(err, driver.Stop())
	}
	return errors.Join(o.work(ctx), registrar.Stop(), driver.Stop())
}

// work runs the command, which the end of ctx ends too; without one it waits for that.
func (o *options) work(ctx context.Context) error {
	if len(o.command) == 0 {
		<-ctx.Done()
		return nil
	}
	c := exec.CommandContext(ctx, o.command[0], o.command[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Cancel = func() error { return c.Process.Signal(unix.SIGTERM) }
	return c.Run()
}

// show prints each call before it takes effect.
func show(driver *csitest.Driver, out io.Writer) {
	var mu sync.Mutex // calls come from several goroutines
	driver.Inject(csitest.Fault{Match: func(call csitest.Call) bool {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(out, call)
		return false
	}})
}
