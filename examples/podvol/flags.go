package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/volumemanager"
)

// addRootDir adds --root-dir.
func addRootDir(flags *pflag.FlagSet, rootDir *string) {
	flags.StringVar(rootDir, "root-dir", defaultRootDir(), "directory below which all volumes and records are")
}

const systemRootDir = "/var/lib/podvol"

// defaultRootDir is empty where an ordinary user has no place of his own.
func defaultRootDir() string {
	if os.Geteuid() == 0 {
		return systemRootDir
	}
	if runtime := os.Getenv("XDG_RUNTIME_DIR"); runtime != "" {
		return filepath.Join(runtime, "podvol")
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
		return "", usagef("say where volumes shall be with --root-dir DIR: it is empty, and there is no XDG_RUNTIME_DIR to take instead; mount --fake needs neither")
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
