package selinux

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// NodeLabels is the role as this node's own SELinux policy plays it, as
// container runtimes do: files have the policy's label for containers' files,
// with the container's level and user.
type NodeLabels struct{ files nodeLabel }

var _ Labels = NodeLabels{}

// NewNodeLabels returns the role for a node whose containers' files have
// this label where nothing else is asked for.
func NewNodeLabels(user, role, fileType, level string) NodeLabels {
	return NodeLabels{nodeLabel{User: user, Role: role, Type: fileType, Level: level}}
}

// ReadNodeLabels reads the policy; enabled is false where the kernel has
// no SELinux, and Config.SELinux is best left nil. An error says that it has,
// but its policy has no label for containers' files.
func ReadNodeLabels() (labels NodeLabels, enabled bool, err error) {
	from := hostFiles()
	if enabled, err = from.enabled(); err != nil || !enabled {
		return NodeLabels{}, false, err
	}
	labels.files, err = from.fileLabel()
	return labels, true, err
}

// FileLabel implements [Labels]. Without a level there is none, since the
// runtime will choose one. Options with characters that no label has are a
// *volume.InvalidSpecError.
func (n NodeLabels) FileLabel(options *v1.SELinuxOptions) (string, error) {
	if options == nil || options.Level == "" {
		return "", nil
	}
	for field, value := range map[string]string{"user": options.User, "level": options.Level} {
		if err := CheckLabel("seLinuxOptions."+field, value); err != nil {
			return "", err
		}
	}
	label := n.files
	label.Level = options.Level
	if options.User != "" {
		label.User = options.User
	}
	return label.String(), nil
}

// policyFiles is where SELinux is looked for. Its zero value has no files at all;
// [hostFiles] has a node's.
type policyFiles struct {
	// SysFS is where selinuxfs is mounted.
	SysFS string
	// Config is SELinux' own configuration, which names the policy, and Policies
	// the directory of all policies.
	Config, Policies string
	// Containers is the file that takes precedence over the policy's own
	// (container-selinux).
	Containers string
}

// hostFiles are the usual places (selinux(8)).
func hostFiles() policyFiles {
	return policyFiles{
		SysFS: "/sys/fs/selinux", Config: "/etc/selinux/config", Policies: "/etc/selinux",
		Containers: "/usr/share/containers/selinux/contexts",
	}
}

// enabled reports whether the kernel labels files: its file system is mounted.
func (f policyFiles) enabled() (bool, error) {
	_, err := os.Lstat(filepath.Join(f.SysFS, "enforce"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// nodeLabel is a label in its parts: user:role:type:level.
type nodeLabel struct{ User, Role, Type, Level string }

// String is the label as the kernel has it.
func (l nodeLabel) String() string {
	return strings.Join([]string{l.User, l.Role, l.Type, l.Level}, ":")
}

// errNoFileLabel says that the policy has no label for containers' files.
var errNoFileLabel = errors.New("the SELinux policy names no label for the files of containers; install the package container-selinux")

// fileLabel is the label that containers' files have where nothing else is
// asked for: "file" of the container contexts (lxc_contexts). Errors match
// [errNoFileLabel] where there is none.
func (f policyFiles) fileLabel() (nodeLabel, error) {
	contexts, err := f.open()
	if errors.Is(err, fs.ErrNotExist) {
		return nodeLabel{}, fmt.Errorf("%w: %w", errNoFileLabel, err)
	}
	if err != nil {
		return nodeLabel{}, err
	}
	defer contexts.Close()
	values, err := settings(contexts)
	if err != nil {
		return nodeLabel{}, fmt.Errorf("%s: %w", contexts.Name(), err)
	}
	text, ok := values["file"]
	if !ok {
		return nodeLabel{}, fmt.Errorf("%w: %s has no line \"file = …\"", errNoFileLabel, contexts.Name())
	}
	parts := strings.SplitN(text, ":", 4)
	if len(parts) != 4 {
		return nodeLabel{}, fmt.Errorf("%s: %q is not user:role:type:level", contexts.Name(), text)
	}
	return nodeLabel{parts[0], parts[1], parts[2], parts[3]}, nil
}

func (f policyFiles) open() (*os.File, error) {
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
func (f policyFiles) policy() (string, error) {
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
