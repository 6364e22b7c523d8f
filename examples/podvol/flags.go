package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/podvol/podvol/util/rootdir"
	"github.com/podvol/podvol/volume/volumemanager"
)

// addRootDir adds --root-dir.
func addRootDir(flags *pflag.FlagSet, rootDir *string) {
	flags.StringVar(rootDir, "root-dir", defaultRootDir(), "directory below which all volumes and records are")
}

// addNodeName adds --node, which takes what the API takes for a node's name; empty: not
// given.
func addNodeName(flags *pflag.FlagSet, name *string, usage string) {
	flags.Var((*nodeName)(name), "node", usage)
}

// nodeName is the value of --node.
type nodeName string

// String implements pflag.Value.
func (n *nodeName) String() string { return string(*n) }

// Type implements pflag.Value.
func (n *nodeName) Type() string { return "string" }

// Set implements pflag.Value.
func (n *nodeName) Set(value string) error {
	if wrong := validation.IsDNS1123Subdomain(value); value != "" && len(wrong) > 0 {
		return fmt.Errorf("it is no node's name: %s", strings.Join(wrong, "; "))
	}
	*n = nodeName(value)
	return nil
}

const systemRootDir = "/var/lib/podvol"

// defaultRootDir is the same for all commands. That of an ordinary user is where his
// programs keep their state (XDG Base Directory Specification), which outlives his
// session as claims and their data do; it is empty where he has no such place.
func defaultRootDir() string {
	if os.Geteuid() == 0 {
		return systemRootDir
	}
	if state := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(state) {
		return filepath.Join(state, "podvol")
	}
	if home := os.Getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "podvol")
	}
	return ""
}

// checkRootDir makes the root directory absolute, and refuses one through which
// another user could lead podvol elsewhere.
func checkRootDir(rootDir string) (string, error) {
	abs, err := absRootDir(rootDir)
	if err != nil {
		return "", err
	}
	if err := volumemanager.CheckRoot(abs); err != nil {
		return "", fmt.Errorf("--root-dir: %w", err)
	}
	return abs, nil
}

// checkShownRootDir is [checkRootDir]; that of a rehearsal is only shown.
func checkShownRootDir(rootDir string, fake bool) (string, error) {
	switch {
	case !fake:
		return checkRootDir(rootDir)
	case rootDir == "":
		return systemRootDir, nil
	}
	return absRootDir(rootDir)
}

func absRootDir(rootDir string) (string, error) {
	if rootDir == "" {
		return "", usagef("say where volumes shall be with --root-dir DIR: it is empty, and there is neither XDG_STATE_HOME nor HOME to take instead; mount --fake needs none")
	}
	abs, err := filepath.Abs(rootDir)
	if err != nil {
		return "", usagef("--root-dir %s: %w", rootDir, err)
	}
	return abs, nil
}

func parsePod(value string) (types.NamespacedName, error) {
	namespace, name, ok := strings.Cut(value, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return types.NamespacedName{}, usagef("--pod %q must be NAMESPACE/NAME", value)
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

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
// a volume's place. Volumes that are there already can be unmounted and deleted.
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
