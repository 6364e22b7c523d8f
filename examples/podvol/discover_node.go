package main

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume/localdiscovery"
)

// addDiscover adds --discover.
func addDiscover(flags *pflag.FlagSet, classes *[]string) {
	flags.StringArrayVar(classes, "discover", nil, "`DIR=CLASS`: offer the disks that are mounted directly below DIR, now or later, as local volumes of that storage class (repeatable)")
}

// parseDiscover reads the values of --discover.
func parseDiscover(values []string) (classes []localdiscovery.Class, err error) {
	for _, value := range values {
		at := strings.LastIndex(value, "=")
		if at <= 0 || at == len(value)-1 {
			return nil, usagef("--discover %q must be DIR=CLASS", value)
		}
		dir, err := disksDir("--discover", filepath.Clean(value[:at]))
		if err != nil {
			return nil, err
		}
		classes = append(classes, localdiscovery.Class{Dir: dir, StorageClass: value[at+1:]})
	}
	return classes, nil
}

// discoverDisks offers the disks of this node among the claims' volumes, until
// stop is called. Without classes it does nothing.
func discoverDisks(ctx context.Context, classes []localdiscovery.Class, storage *storage, config nodeConfig, say func(string)) (stop func(), err error) {
	if len(classes) == 0 {
		return func() {}, nil
	}
	table, err := mount.KernelTable()
	if err != nil {
		return nil, err
	}
	d := &localdiscovery.Discoverer{Objects: storage.Objects(), Mounts: table, NodeName: config.nodeName, Classes: classes, Logger: config.log}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := d.Run(ctx); err != nil && ctx.Err() == nil {
			say("no disks are offered any more: " + err.Error())
		}
	}()
	return func() { cancel(); <-ended }, nil
}
