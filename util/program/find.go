// Package program finds the programs of a node that podvol runs, such as mkfs or iscsiadm.
//
// Like every package below util, it carries no promise of compatibility.
package program

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Find returns the absolute path of a program in directories, of which the first that has it
// counts; nil: those of PATH, and then those that only root's PATH may have. The error names the
// program. It matches [exec.ErrNotFound] only if the program is certainly not there.
func Find(dirs []string, name string) (string, error) {
	if dirs == nil {
		dirs = append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin", "/usr/bin", "/bin")
	}
	var unknown error // it may be there
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) {
			continue
		}
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			unknown = cmp.Or(unknown, err)
		}
	}
	return "", fmt.Errorf("%s: %w", name, cmp.Or(unknown, exec.ErrNotFound))
}
