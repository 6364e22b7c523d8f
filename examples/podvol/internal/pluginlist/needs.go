package pluginlist

import (
	"os"
	"path/filepath"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/program"
	"github.com/podvol/podvol/volume/plugins/cephfs"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/plugins/emptydir"
	"github.com/podvol/podvol/volume/plugins/flexvolume"
	"github.com/podvol/podvol/volume/plugins/glusterfs"
	"github.com/podvol/podvol/volume/plugins/iscsi"
	"github.com/podvol/podvol/volume/plugins/nfs"
	"github.com/podvol/podvol/volume/plugins/rbd"
)

// Need is one thing of the machine that a plugin's volumes need.
type Need struct {
	// Kind is program, filesystem, module or driver.
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Found says whether the machine has it; nil: only a volume tells.
	Found *bool `json:"found,omitempty"`
}

// text has the name, and a mark where it is not known whether it is there.
func (n Need) text() string {
	if n.Found == nil {
		return n.Name + "?"
	}
	return n.Name
}

// The kinds of needs.
const (
	aProgram    = "program"
	aFileSystem = "filesystem"
	aModule     = "module"
	aDriver     = "driver"
)

// Machine says where the things of a machine are. The zero value is this machine.
type Machine struct {
	// Kernel knows its file systems and modules.
	Kernel host.Config
	// ToolDirs have its programs; nil: those of PATH, and then root's.
	ToolDirs []string
	// LoadedDir has a directory for each module that is loaded; empty: /sys/module.
	LoadedDir string
}

// needs are what a plugin needs for its volumes. No plugin tells. What only some volumes need, such
// as the mkfs of their file system, is left out.
func needs(plugin string) []Need {
	disk := []Need{{Kind: aProgram, Name: "blkid"}, {Kind: aProgram, Name: "fsck"}}
	switch plugin {
	case cephfs.PluginName:
		return []Need{{Kind: aFileSystem, Name: "ceph"}}
	case csi.PluginName, flexvolume.PluginName:
		return []Need{{Kind: aDriver, Name: "driver"}}
	case emptydir.PluginName, "kubernetes.io/projected", "kubernetes.io/secret":
		return []Need{{Kind: aFileSystem, Name: "tmpfs"}}
	case glusterfs.PluginName:
		return []Need{{Kind: aProgram, Name: "mount.glusterfs"}, {Kind: aFileSystem, Name: "fuse"}}
	case iscsi.PluginName:
		return append([]Need{{Kind: aProgram, Name: "iscsiadm"}, {Kind: aModule, Name: "iscsi_tcp"}}, disk...)
	case nfs.PluginName:
		return []Need{{Kind: aFileSystem, Name: "nfs"}}
	case rbd.PluginName:
		return append([]Need{{Kind: aModule, Name: "rbd"}}, disk...)
	}
	return nil
}

// look says of a need whether the machine has it. It starts and loads nothing.
func (m Machine) look(n Need) Need {
	var found bool
	switch n.Kind {
	case aProgram:
		_, err := program.Find(m.ToolDirs, n.Name)
		found = err == nil
	case aFileSystem:
		found = m.Kernel.KernelHas(n.Name)
	case aModule:
		dir := m.LoadedDir
		if dir == "" {
			dir = "/sys/module"
		}
		_, err := os.Stat(filepath.Join(dir, n.Name))
		found = err == nil || m.Kernel.KernelHas(n.Name)
	default:
		return n
	}
	n.Found = &found
	return n
}
