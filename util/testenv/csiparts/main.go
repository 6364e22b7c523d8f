// Command csiparts stands for some programs of Kubernetes' CSI images: the driver
// csi-driver-host-path, and the sidecars node-driver-registrar and livenessprobe. It knows the
// flags with which the manifests of Kubernetes' end-to-end tests start them. The name by which
// it is called says which one it is, as the names of the images do:
//
//	hostpathplugin             package csitest's driver; with --proxy-endpoint, the way to a
//	                           driver that runs in the tests themselves
//	csi-node-driver-registrar  package csitest's registrar, for the driver beside it
//	livenessprobe              an HTTP server that asks the driver beside it whether it is ready
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/podvol/podvol/volume/volumetest/csitest"
)

func main() {
	name := filepath.Base(os.Args[0])
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, name, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, name string, args []string) error {
	part := parts()[name]
	if part == nil {
		return fmt.Errorf("there is no part of this name")
	}
	return part(ctx, args)
}

func parts() map[string]func(context.Context, []string) error {
	return map[string]func(context.Context, []string) error{"hostpathplugin": hostpathPlugin, "csi-node-driver-registrar": registrar, "livenessprobe": livenessProbe}
}

// flags are a part's, without those that mean nothing here.
func flags(name string, ignored ...string) *flag.FlagSet {
	set := flag.NewFlagSet(name, flag.ContinueOnError)
	for _, name := range append(ignored, "v") {
		set.String(name, "", "means nothing here")
	}
	return set
}

// registrar registers the driver beside it until ctx ends, and fails where the node refuses it.
func registrar(ctx context.Context, args []string) error {
	set := flags("csi-node-driver-registrar", "timeout")
	driver := set.String("csi-address", "/csi/csi.sock", "the driver's `socket`")
	endpoint := set.String("kubelet-registration-path", "", "the same `socket` as the node sees it")
	health := set.String("http-endpoint", "", "the `address` of /healthz; empty: none")
	dir := set.String("plugin-registration-path", "/registration", "the `directory` of registrars' sockets")
	if err := set.Parse(args); err != nil {
		return err
	}
	name, err := nameOf(ctx, *driver)
	if err != nil {
		return err
	}
	if *health != "" {
		defer serve(*health, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))()
	}
	r := &csitest.Registrar{Name: name, Endpoint: *endpoint}
	if err := r.Start(filepath.Join(*dir, name+"-reg.sock")); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return r.Stop()
		case <-r.Told():
			statuses := r.Statuses()
			if last := statuses[len(statuses)-1]; last != "registered" {
				return errors.Join(errors.New(last), r.Stop())
			}
		}
	}
}

// nameOf waits for the driver at a socket, and asks for its name.
func nameOf(ctx context.Context, socket string) (string, error) {
	connection, err := csitest.Dial(socket)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	again := time.NewTicker(500 * time.Millisecond)
	defer again.Stop()
	for {
		info, err := csi.NewIdentityClient(connection).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
		if err == nil {
			return info.Name, nil
		}
		select {
		case <-ctx.Done():
			return "", errors.Join(ctx.Err(), err)
		case <-again.C:
		}
	}
}

// livenessProbe serves /healthz until ctx ends.
func livenessProbe(ctx context.Context, args []string) error {
	set := flags("livenessprobe")
	driver := set.String("csi-address", "/csi/csi.sock", "the driver's `socket`")
	port := set.String("health-port", "9808", "the `port` of /healthz")
	if err := set.Parse(args); err != nil {
		return err
	}
	connection, err := csitest.Dial(*driver)
	if err != nil {
		return err
	}
	defer connection.Close()
	defer serve(":"+*port, readiness(connection))()
	<-ctx.Done()
	return nil
}

// readiness asks the driver.
func readiness(driver *grpc.ClientConn) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := csi.NewIdentityClient(driver).Probe(r.Context(), &csi.ProbeRequest{}); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
}

// serve answers /healthz until close is called.
func serve(address string, health http.Handler) (close func()) {
	mux := http.NewServeMux()
	mux.Handle("/healthz", health)
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintf(os.Stderr, "healthz: %v\n", err)
		}
	}()
	return func() { _ = server.Close() }
}

// socketOf is the path of an endpoint, which is a path or a URL.
func socketOf(endpoint string) string { return strings.TrimPrefix(endpoint, "unix://") }
