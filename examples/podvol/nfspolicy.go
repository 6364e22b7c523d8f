package main

import (
	"os"

	"github.com/spf13/pflag"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

// addNFSPolicy adds --nfs-policy.
func addNFSPolicy(flags *pflag.FlagSet, file *string) {
	flags.StringVar(file, "nfs-policy", "", "YAML `FILE` that says which mount options and directories pods may ask NFS servers for (default: none)")
}

// nfsUnderPolicy returns the NFS plugin under the policy of a file; none for
// none, since the stock one will do. What is wrong with the file is a
// *usageError.
func nfsUnderPolicy(file string) ([]volume.VolumePlugin, error) {
	if file == "" {
		return nil, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, usagef("--nfs-policy: %w", err)
	}
	defer f.Close()
	policy, err := nfs.ParsePolicy(f)
	if err != nil {
		return nil, usagef("--nfs-policy %s: %w", file, err)
	}
	return []volume.VolumePlugin{nfs.New(nfs.Config{Inline: policy})}, nil
}
