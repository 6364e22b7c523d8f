// Package completion completes words of podvol's command line with what is below the root directory,
// and with what the podvol run-node knows that keeps it. It takes no lock, and offers nothing where
// something cannot be read.
package completion

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/podvol/podvol/examples/podvol/internal/nodeserver"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume/objects/persisted"
	"github.com/podvol/podvol/volume/standalone"
	"github.com/podvol/podvol/volume/volumemanager"
)

// known are the volumes of the records and of the node, which also knows those that wait; some are
// both.
func known(c *cobra.Command) []nodeserver.Volume {
	rootDir, ok := root(c)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.Context(), patience)
	defer cancel()
	asked, _ := nodeserver.Volumes(ctx, rootDir) // none where none answers
	asked = slices.DeleteFunc(asked, nodeserver.Volume.IsRefused)
	statuses, _ := volumemanager.Inspect(rootDir, table.Kernel())
	recorded, _ := nodeserver.VolumesOf(statuses)
	return slices.Concat(recorded, asked)
}

// Pods completes a flag with the pods of volumes below the root directory.
func Pods(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, v := range known(c) {
		if v.Pod != "" {
			names = append(names, v.PodName())
		}
	}
	return offered(names, nil)
}

// UIDs completes a flag with the UIDs of such pods; beside each is its name.
func UIDs(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var uids []string
	for _, v := range known(c) {
		uid := v.PodUID
		if v.Pod != "" {
			uid = cobra.CompletionWithDesc(uid, v.PodName())
		}
		uids = append(uids, uid)
	}
	return offered(uids, nil)
}

// PodOrVolume completes one argument, POD or POD/VOLUME: with the pods, and with the volumes of a pod
// that is named as NAMESPACE/NAME, NAME or UID and followed by a slash.
func PodOrVolume(c *cobra.Command, args []string, given string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if len(args) > 0 {
		return offered(nil, nil)
	}
	for _, v := range known(c) {
		if v.Pod == "" {
			continue
		}
		names = append(names, v.PodName())
		for _, pod := range []string{v.PodName(), v.Pod, v.PodUID} {
			if strings.HasPrefix(given, pod+"/") {
				names = append(names, pod+"/"+v.Volume)
			}
		}
	}
	return offered(slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, given) }), nil)
}

// Claims completes arguments with the claims below the root directory: without their
// namespace where that is the one that -n says.
func Claims(c *cobra.Command, args []string, given string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if rootDir, ok := root(c); ok {
		namespace := c.Flag("namespace").Value.String()
		claims, _, _ := persisted.Read(standalone.ClaimsDir(rootDir))
		for _, claim := range claims {
			if claim.Namespace == namespace && !strings.Contains(given, "/") {
				names = append(names, claim.Name)
			} else {
				names = append(names, claim.Namespace+"/"+claim.Name)
			}
		}
	}
	return offered(names, args)
}

// Volumes completes arguments with the PersistentVolumes below the root directory.
func Volumes(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if rootDir, ok := root(c); ok {
		_, volumes, _ := persisted.Read(standalone.ClaimsDir(rootDir))
		for _, pv := range volumes {
			names = append(names, pv.Name)
		}
	}
	return offered(names, args)
}

func root(c *cobra.Command) (string, bool) {
	rootDir, err := filepath.Abs(c.Flag("root-dir").Value.String())
	return rootDir, err == nil && volumemanager.CheckRoot(rootDir) == nil
}

// offered are the names that are not given yet.
func offered(names, given []string) ([]string, cobra.ShellCompDirective) {
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(name string) bool { return slices.Contains(given, name) })
	return names, cobra.ShellCompDirectiveNoFileComp
}
