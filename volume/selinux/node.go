package selinux

import (
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/selinuxlabel"
)

// NodeLabels is the role as this node's own SELinux policy plays it, as
// container runtimes do: files have the policy's label for containers' files,
// with the container's level and user.
type NodeLabels struct{ files selinuxlabel.Label }

var _ Labels = NodeLabels{}

// NewNodeLabels returns the role for a node whose containers' files have
// this label where nothing else is asked for.
func NewNodeLabels(user, role, fileType, level string) NodeLabels {
	return NodeLabels{selinuxlabel.Label{User: user, Role: role, Type: fileType, Level: level}}
}

// ReadNodeLabels reads the policy; enabled is false where the kernel has
// no SELinux, and Config.SELinux is best left nil. An error says that it has,
// but its policy has no label for containers' files.
func ReadNodeLabels() (labels NodeLabels, enabled bool, err error) {
	from := selinuxlabel.Host()
	if enabled, err = from.Enabled(); err != nil || !enabled {
		return NodeLabels{}, false, err
	}
	labels.files, err = from.FileLabel()
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
