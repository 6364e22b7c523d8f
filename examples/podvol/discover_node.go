package main

import (
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/localdiscovery"
	"github.com/podvol/podvol/volume/plugins/local"
)

// addDiscover adds --discover.
func addDiscover(flags *pflag.FlagSet, classes *[]string) {
	flags.StringArrayVar(classes, "discover", nil, "`DIR=CLASS`: offer the disks that are mounted directly below DIR, now or later, as local volumes of that storage class (repeatable)")
}

// addCleanDisks adds --clean-disks.
func addCleanDisks(flags *pflag.FlagSet, action *string) {
	flags.StringVar(action, "clean-disks", "",
		"what is done with the data of disks that --discover offers from now on, once their claim is deleted: `dry-run` only says what would be deleted, delete empties the file system and offers the disk again; devices are never wiped (default: all is kept)")
}

// cleaning has the volumes of disks cleaned as --clean-disks says, and returns the
// plugin that does it, none where nothing is to be cleaned.
func cleaning(action string, classes []localdiscovery.Class) ([]volume.VolumePlugin, error) {
	what, known := map[string]local.CleanAction{"": local.CleanNever, "dry-run": local.CleanDryRun, "delete": local.CleanDelete}[action]
	switch {
	case !known:
		return nil, usagef("--clean-disks %q must be dry-run or delete", action)
	case what == local.CleanNever:
		return nil, nil
	case len(classes) == 0:
		return nil, usagef("--clean-disks is about the disks of --discover, which is not given")
	}
	config := local.Config{Clean: local.CleanConfig{Action: what}}
	for i := range classes {
		classes[i].ReclaimPolicy = v1.PersistentVolumeReclaimDelete
		config.Clean.Below = append(config.Clean.Below, classes[i].Dir)
	}
	return []volume.VolumePlugin{local.New(config)}, nil
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
