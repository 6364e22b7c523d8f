package completion

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/podvol/podvol/examples/podvol/internal/nodeserver"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume/objects/persisted"
	"github.com/podvol/podvol/volume/standalone"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Flags completes the flags of a command and of those below it that mean the same in all of them.
func Flags(top *cobra.Command) {
	below := cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
	known := map[string]cobra.CompletionFunc{
		"namespace": namespaces, "node": nodes, "csi-driver": drivers,
		"root-dir": below, "volume-dir": below, "image-layout": below, "csi-registry": below, "flexvolume-dir": below, "rootfs": below,
		"clean-disks": words("dry-run", "delete"), "mode": words("block", "filesystem"),
	}
	top.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if complete := known[f.Name]; complete != nil {
			_ = top.RegisterFlagCompletionFunc(f.Name, complete) // the flag is there
		}
	})
	for _, c := range top.Commands() {
		Flags(c)
	}
}

func words(all ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(all, cobra.ShellCompDirectiveNoFileComp)
}

// namespaces are those of the claims below the root directory.
func namespaces(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if rootDir, ok := root(c); ok {
		claims, _, _ := persisted.Read(standalone.ClaimsDir(rootDir))
		for _, claim := range claims {
			names = append(names, claim.Namespace)
		}
	}
	return offered(names, nil)
}

// nodes are those that volumes below the root directory were mounted for.
func nodes(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if c.Flag("root-dir") == nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if rootDir, ok := root(c); ok {
		volumes, _ := volumemanager.Inspect(rootDir, table.Kernel())
		for _, v := range volumes {
			if v.NodeName != "" {
				names = append(names, string(v.NodeName))
			}
		}
	}
	return offered(names, nil)
}

// patience is how long a shell waits for the node.
const patience = 300 * time.Millisecond

// drivers are those of the podvol run-node that runs, with their sockets, and the names that the
// manifests of -f have. A socket may be given alone: then the shell completes files.
func drivers(c *cobra.Command, _ []string, given string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if rootDir, ok := root(c); ok {
		ctx, cancel := context.WithTimeout(c.Context(), patience)
		defer cancel()
		running, _ := nodeserver.Drivers(ctx, rootDir)
		for _, d := range running {
			names = append(names, d.Driver+"="+d.Socket)
		}
	}
	for _, name := range driversOf(c) {
		names = append(names, name+"=")
	}
	var fit []string
	for _, name := range names {
		if strings.HasPrefix(name, given) {
			fit = append(fit, name)
		}
	}
	fit, _ = offered(fit, nil)
	return fit, cobra.ShellCompDirectiveNoSpace
}

// driversOf are the drivers that the manifests of -f name.
func driversOf(c *cobra.Command) (names []string) {
	set := load(c)
	if set == nil {
		return nil
	}
	for _, pod := range set.Pods() {
		for _, v := range pod.Spec.Volumes {
			if v.CSI != nil {
				names = append(names, v.CSI.Driver)
			}
		}
	}
	all, _ := set.Objects(c.Context())
	for _, object := range all {
		switch o := object.(type) {
		case *storagev1.CSIDriver:
			names = append(names, o.Name)
		case *v1.PersistentVolume:
			if o.Spec.CSI != nil {
				names = append(names, o.Spec.CSI.Driver)
			}
		case *storagev1.StorageClass:
			if !strings.HasPrefix(o.Provisioner, "kubernetes.io/") {
				names = append(names, o.Provisioner)
			}
		}
	}
	return names
}
