package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/podvol/podvol/util/testenv/kubecluster"
)

// order is what the run tells a node, at a socket in the node's directory.
type order struct {
	Stop, Kill bool     // end the agent, which is asked or not
	Start      string   // start this program as the agent
	Flags      []string // of it, after its others
	Run        []string // run a program in the node's namespaces
}

// answer is what has become of an order.
type answer struct{ Out, Err string }

// given is an order for the agent.
type given struct {
	order
	obeyed chan error
}

func (n node) socket() string { return filepath.Join(n.dir(), "control") }

// listen takes the run's orders. It runs programs by itself, and hands on what is meant for
// the agent: that may be started by one thread only.
func (n node) listen(ctx context.Context, o options) (<-chan given, error) {
	listener, err := net.Listen("unix", n.socket())
	if err != nil {
		return nil, err
	}
	orders := make(chan given)
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				fmt.Fprintf(os.Stderr, "%s takes no orders any more: %v\n", n.name(), err)
				return
			}
			go obey(ctx, o, connection, orders)
		}
	}()
	return orders, nil
}

func obey(ctx context.Context, o options, connection net.Conn, orders chan<- given) {
	defer connection.Close()
	var told order
	err := json.NewDecoder(connection).Decode(&told)
	var out []byte
	switch {
	case err != nil:
	case len(told.Run) > 0:
		cmd := inCluster(ctx, o, told.Run[0], told.Run[1:]...)
		out, err = cmd.Output()
		if exit, is := errors.AsType[*exec.ExitError](err); is {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
	default:
		obeyed := make(chan error, 1)
		orders <- given{told, obeyed}
		err = <-obeyed
	}
	said := answer{Out: string(out)}
	if err != nil {
		said.Err = err.Error()
	}
	_ = json.NewEncoder(connection).Encode(said) // the run may have ended
}

// tell gives a node an order, and returns what it prints.
func (n node) tell(ctx context.Context, told order) (string, error) {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "unix", n.socket())
	if err != nil {
		return "", err
	}
	defer connection.Close()
	defer context.AfterFunc(ctx, func() { _ = connection.Close() })()
	var said answer
	if err := errors.Join(json.NewEncoder(connection).Encode(told), json.NewDecoder(connection).Decode(&said)); err != nil {
		return "", fmt.Errorf("%s: %w", n.name(), errors.Join(err, context.Cause(ctx)))
	}
	if said.Err != "" {
		return said.Out, fmt.Errorf("%s: %s", n.name(), said.Err)
	}
	return said.Out, nil
}

// shell runs a script in the node's namespaces, and returns what it prints.
func (n node) shell(ctx context.Context, script string) (string, error) {
	return n.tell(ctx, order{Run: []string{"sh", "-c", script}})
}

// agent is what runs the pods of a node: at most one program at a time. Its methods are
// called by one goroutine, which keeps its thread.
type agent struct {
	node    node
	o       options
	process *kubecluster.Process // nil: none
}

func (a *agent) start(kind string, flags []string) error {
	program := nodePrograms()[kind]
	if program == nil {
		return fmt.Errorf("there is no node %q", kind)
	}
	process := program(a.node, a.o)
	process.Args = append(process.Args, flags...)
	if err := process.Start(); err != nil {
		return err
	}
	a.process = process
	return nil
}

// exited is closed when the agent ends by itself.
func (a *agent) exited() <-chan struct{} {
	if a.process == nil {
		return nil
	}
	return a.process.Exited()
}

func (a *agent) kill() {
	if a.process != nil {
		a.process.Kill()
		a.process = nil
	}
}

func (a *agent) obey(told order) error {
	if told.Stop && a.process != nil {
		a.process.Stop()
		a.process = nil
	}
	if told.Kill {
		a.kill()
	}
	switch {
	case told.Start == "":
		return nil
	case a.process != nil:
		return fmt.Errorf("%s still runs", a.process.Name)
	}
	return a.start(told.Start, told.Flags)
}
