package mount

import (
	"fmt"
	"slices"
	"strings"
)

// distribution is a family of distributions, by how packages are installed.
type distribution struct {
	// ids are what ID and ID_LIKE of os-release(5) say.
	ids []string
	// name is for a list, install the command before a package's name. One
	// without a name is listed with another.
	name, install string
	// packages are the mount helpers' packages, by family of types; "mount" is the
	// mount command itself, "kernel" the kernel's less common modules.
	packages map[string]string
}

// distributions lists the families whose packages are known.
func distributions() []distribution {
	return []distribution{
		{
			ids: []string{"ubuntu"}, install: "apt-get install",
			packages: map[string]string{"nfs": "nfs-common", "cifs": "cifs-utils", "ceph": "ceph-common", "glusterfs": "glusterfs-client", "fuse": "fuse3", "mount": "mount", "kernel": "linux-modules-extra-$(uname -r)"},
		},
		{
			ids: []string{"debian"}, name: "Debian and Ubuntu", install: "apt-get install",
			packages: map[string]string{"nfs": "nfs-common", "cifs": "cifs-utils", "ceph": "ceph-common", "glusterfs": "glusterfs-client", "fuse": "fuse3", "mount": "mount"},
		},
		{
			ids: []string{"fedora", "rhel", "centos", "amzn"}, name: "RHEL and Fedora", install: "dnf install",
			packages: map[string]string{"nfs": "nfs-utils", "cifs": "cifs-utils", "ceph": "ceph-common", "glusterfs": "glusterfs-fuse", "fuse": "fuse3", "mount": "util-linux", "kernel": "kernel-modules-extra"},
		},
		{
			ids: []string{"suse", "opensuse", "sles"}, name: "SUSE", install: "zypper install",
			packages: map[string]string{"nfs": "nfs-client", "cifs": "cifs-utils", "ceph": "ceph-common", "glusterfs": "glusterfs", "fuse": "fuse3", "mount": "util-linux", "kernel": "kernel-default"},
		},
		{
			ids: []string{"alpine"}, name: "Alpine", install: "apk add",
			packages: map[string]string{"nfs": "nfs-utils", "cifs": "cifs-utils", "ceph": "ceph-common", "glusterfs": "glusterfs-client", "fuse": "fuse3", "mount": "util-linux"},
		},
		{
			ids: []string{"arch", "archlinux"}, name: "Arch", install: "pacman -S",
			packages: map[string]string{"nfs": "nfs-utils", "cifs": "cifs-utils", "ceph": "ceph", "glusterfs": "glusterfs", "fuse": "fuse3", "mount": "util-linux"},
		},
	}
}

// packageFor says how to install what a key of distribution.packages stands
// for, on a node whose os-release(5) has these ids: the one command where the
// distribution is known, else the package of each. It returns "" where no
// package is known.
func packageFor(key string, ids []string) string {
	all := distributions()
	for _, id := range ids {
		i := slices.IndexFunc(all, func(d distribution) bool { return slices.Contains(d.ids, id) })
		if i < 0 {
			continue
		}
		if name := all[i].packages[key]; name != "" {
			return all[i].install + " " + name
		}
		return ""
	}
	return packageList(key, all)
}

// packageList names the package of each distribution; distributions with the same
// name for it stand together.
func packageList(key string, all []distribution) string {
	var names []string
	where := map[string][]string{}
	for _, d := range all {
		name := d.packages[key]
		if name == "" || d.name == "" {
			continue
		}
		if where[name] == nil {
			names = append(names, name)
		}
		where[name] = append(where[name], d.name)
	}
	switch len(names) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("package %s on all distributions", names[0])
	}
	var list []string
	for _, name := range names {
		list = append(list, name+" on "+strings.Join(where[name], ", "))
	}
	return "package " + strings.Join(list, "; ")
}
