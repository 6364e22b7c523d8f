package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"

	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// topologyKey is the driver's own.
const topologyKey = "topology.hostpath.csi/node"

// hostpathPlugin serves the driver, or the way to one, until ctx ends. Volumes are directories,
// and block volumes are images on loop devices.
func hostpathPlugin(ctx context.Context, args []string) error {
	set := flags("hostpathplugin", "enable-controller-modify-volume")
	c := csitest.Config{Capabilities: csitest.AllCapabilities(), BlockDisk: csitest.Loop}
	c.Capabilities.VolumeMountGroup = false
	endpoint := set.String("endpoint", "", "the driver's `socket`")
	proxied := set.String("proxy-endpoint", "", "the `address` at which the tests' own driver connects; empty: this is the driver")
	checks := set.Bool("check-volume-lifecycle", false, "a volume that a node uses is not detached")
	topology := set.Bool("enable-topology", true, "volumes are of one node")
	mutable := set.String("accepted-mutable-parameter-names", "", "the `names` of mutable parameters, with commas")
	set.StringVar(&c.Dir, "statedir", "/csi-data-dir", "the `directory` with the volumes")
	set.StringVar(&c.Name, "drivername", "hostpath.csi.k8s.io", "the driver's `name`")
	set.StringVar(&c.NodeID, "nodeid", "", "the `node`")
	set.Int64Var(&c.MaxVolumesPerNode, "maxvolumespernode", 0, "how `many` volumes a node can have; 0: any number")
	set.Int64Var(&c.MaxVolumesPerNode, "attach-limit", 0, "the same `number`")
	set.BoolVar(&c.Capabilities.Attach, "enable-attach", false, "volumes are attached")
	set.BoolVar(&c.ExpandOnNode, "node-expand-required", false, "the node expands volumes, too")
	if err := set.Parse(args); err != nil {
		return err
	}
	if *proxied != "" {
		return proxy(ctx, socketOf(*endpoint), strings.TrimPrefix(*proxied, "tcp://"))
	}
	if *topology {
		c.Topology = map[string]string{topologyKey: c.NodeID}
	}
	if !*checks {
		c.Misbehaviours = []csitest.Misbehaviour{csitest.DetachesInUse}
	}
	c.Mutable = strings.FieldsFunc(*mutable, func(r rune) bool { return r == ',' })
	driver := csitest.New(c)
	logCalls(driver, os.Stdout)
	if err := driver.Start(socketOf(*endpoint)); err != nil {
		return err
	}
	<-ctx.Done()
	return driver.Stop()
}

// logCalls prints each call as the tests read them in the container's log.
func logCalls(driver *csitest.Driver, out io.Writer) {
	var mu sync.Mutex // calls come from several goroutines
	driver.Inject(csitest.Fault{Match: func(call csitest.Call) bool {
		text, err := json.Marshal(struct {
			Method  string
			Request any
		}{call.Method, call.Request})
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			_, err = fmt.Fprintf(out, "gRPCCall: %s\n", text)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "a call is not in the log: %s: %v\n", call, err)
		}
		return false
	}})
}

// proxy joins each connection to a socket with one to an address, until ctx ends. The tests
// connect in advance: their connections wait for callers of the driver.
func proxy(ctx context.Context, socket, address string) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	callers, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	drivers, err := net.Listen("tcp", address)
	if err != nil {
		return errors.Join(err, callers.Close())
	}
	return joinAll(ctx, callers, drivers)
}

// joinAll closes both listeners.
func joinAll(ctx context.Context, callers, drivers net.Listener) error {
	defer context.AfterFunc(ctx, func() { _, _ = callers.Close(), drivers.Close() })()
	for {
		caller, err := callers.Accept()
		if err != nil {
			return unlessOver(ctx, err)
		}
		driver, err := drivers.Accept()
		if err != nil {
			return errors.Join(unlessOver(ctx, err), caller.Close())
		}
		go join(caller, driver)
	}
}

func unlessOver(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// join copies what either says to the other, until one of them ends.
func join(a, b net.Conn) {
	var both sync.Once
	end := func() { both.Do(func() { _, _ = a.Close(), b.Close() }) }
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		go func() {
			defer end()
			_, _ = io.Copy(way[0], way[1]) // an error is an end
		}()
	}
}
