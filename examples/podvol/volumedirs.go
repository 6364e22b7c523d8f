package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/podvol/podvol/util/rootdir"
)

// addVolumeDirs adds --volume-dir.
func addVolumeDirs(flags *pflag.FlagSet, dirs *[]string) {
	flags.StringArrayVar(dirs, "volume-dir", nil,
		"`DIR` below which volumes are made for storage classes of provisioner kubernetes.io/host-path (repeatable; default: podvol/volumes below the root directory)")
}

// checkVolumeDirs makes directories absolute.
func checkVolumeDirs(dirs []string) ([]string, error) {
	absolute := make([]string, 0, len(dirs))
	for _, dir := range dirs {
		path, err := filepath.Abs(dir)
		if err != nil {
			return nil, usagef("--volume-dir %s: %w", dir, err)
		}
		if info, err := os.Stat(path); err != nil {
			return nil, usagef("--volume-dir: %w", err)
		} else if !info.IsDir() {
			return nil, usagef("--volume-dir %s is no directory", path)
		}
		absolute = append(absolute, path)
	}
	return absolute, nil
}

// checkNewVolumeDirs is [checkVolumeDirs] for commands that make and mount volumes:
// a directory that another user can change is refused, since he could put a link in
// a volume's place. What is there already can be unmounted and deleted.
func checkNewVolumeDirs(dirs []string) ([]string, error) {
	absolute, err := checkVolumeDirs(dirs)
	if err != nil {
		return nil, err
	}
	for _, dir := range absolute {
		own, err := rootdir.Open(dir)
		if err != nil {
			return nil, fmt.Errorf("--volume-dir %s: %w", dir, err)
		}
		own.Close()
	}
	return absolute, nil
}
