// Package selinuxlabel says which SELinux label the files of containers have on
// this node, by the policy's own files and without a library of SELinux.
//
// Like every package below util, it carries no promise of compatibility.
package selinuxlabel

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Files is where SELinux is looked for. Its zero value has no files at all;
// [Host] has a node's.
type Files struct {
	// SysFS is where selinuxfs is mounted.
	SysFS string
	// Config is SELinux' own configuration, which names the policy, and Policies
	// the directory of all policies.
	Config, Policies string
	// Containers is the file that takes precedence over the policy's own
	// (container-selinux).
	Containers string
}

// Host are the usual places (selinux(8)).
func Host() Files {
	return Files{
		SysFS: "/sys/fs/selinux", Config: "/etc/selinux/config", Policies: "/etc/selinux",
		Containers: "/usr/share/containers/selinux/contexts",
	}
}

// Enabled reports whether the kernel labels files: its file system is mounted.
func (f Files) Enabled() (bool, error) {
	_, err := os.Lstat(filepath.Join(f.SysFS, "enforce"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Label is a label in its parts: user:role:type:level.
type Label struct{ User, Role, Type, Level string }

// String is the label as the kernel has it.
func (l Label) String() string { return strings.Join([]string{l.User, l.Role, l.Type, l.Level}, ":") }

// ErrNoFileLabel says that the policy has no label for containers' files.
var ErrNoFileLabel = errors.New("the SELinux policy names no label for the files of containers; install the package container-selinux")

// FileLabel is the label that containers' files have where nothing else is
// asked for: "file" of the container contexts (lxc_contexts). Errors match
// [ErrNoFileLabel] where there is none.
func (f Files) FileLabel() (Label, error) {
	contexts, err := f.open()
	if errors.Is(err, fs.ErrNotExist) {
		return Label{}, fmt.Errorf("%w: %w", ErrNoFileLabel, err)
	}
	if err != nil {
		return Label{}, err
	}
	defer contexts.Close()
	values, err := settings(contexts)
	if err != nil {
		return Label{}, fmt.Errorf("%s: %w", contexts.Name(), err)
	}
	text, ok := values["file"]
	if !ok {
		return Label{}, fmt.Errorf("%w: %s has no line \"file = …\"", ErrNoFileLabel, contexts.Name())
	}
	parts := strings.SplitN(text, ":", 4)
	if len(parts) != 4 {
		return Label{}, fmt.Errorf("%s: %q is not user:role:type:level", contexts.Name(), text)
	}
	return Label{parts[0], parts[1], parts[2], parts[3]}, nil
}

func (f Files) open() (*os.File, error) {
	contexts, err := os.Open(f.Containers)
	if !errors.Is(err, fs.ErrNotExist) {
		return contexts, err
	}
	policy, err := f.policy()
	if err != nil {
		return nil, err
	}
	return os.Open(filepath.Join(f.Policies, policy, "contexts", "lxc_contexts"))
}

// policy is the name of the policy, a directory.
func (f Files) policy() (string, error) {
	config, err := os.Open(f.Config)
	if err != nil {
		return "", err
	}
	defer config.Close()
	values, err := settings(config)
	if err != nil {
		return "", fmt.Errorf("%s: %w", f.Config, err)
	}
	name := values["SELINUXTYPE"]
	if name == "" || strings.Contains(name, "/") || name == ".." {
		return "", fmt.Errorf("%s: SELINUXTYPE names no policy: %q", f.Config, name)
	}
	return name, nil
}

// settings reads lines of the form name = value, whose value may be quoted.
// Lines that are empty or begin with "#" or ";" are comments.
func settings(r io.Reader) (map[string]string, error) {
	values := make(map[string]string)
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if ok {
			values[strings.TrimSpace(name)] = strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return values, lines.Err()
}
