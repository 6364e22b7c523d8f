package mount

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/podvol/podvol/mount/internal/fstypes"
)

// Cause is why a mount or unmount failed. Causes are errors and comparable:
// test for one with errors.Is.
type Cause string

// The causes. Behind each stand the errnos of the system calls and the words of
// the kernel, util-linux, nfs-utils and cifs-utils that lead to it.
const (
	// ErrUnknown: none of the others can be told from errno and output.
	ErrUnknown Cause = "unknown cause"
	// ErrHelperMissing: mount.<type> is not there, or mount(8) itself
	// ("you might need a /sbin/mount.<type> helper program", or its list of
	// possibilities on a node without the helper).
	ErrHelperMissing Cause = "the mount helper is not installed on this node"
	// ErrNoFilesystem: the running kernel has neither the type nor its module
	// (ENODEV of fsopen(2) and mount(2); "unknown filesystem type";
	// "NFSv4 is not compiled into kernel").
	ErrNoFilesystem Cause = "this kernel does not have the file system"
	// ErrNameResolution: no address for the server ("Failed to resolve
	// server", "could not resolve address", "Name or service not known").
	ErrNameResolution Cause = "the server's name does not resolve"
	// ErrConnectionRefused: ECONNREFUSED, ECONNRESET; "Connection refused".
	ErrConnectionRefused Cause = "the server refuses connections"
	// ErrTimedOut: ETIMEDOUT, EHOSTDOWN, EHOSTUNREACH, ENETUNREACH and words
	// for them; also a context whose deadline passed.
	ErrTimedOut Cause = "the server does not answer"
	// ErrAccessDenied: the server said no: EACCES and ENOKEY of a network file
	// system, "access denied by server", mount.cifs's error 13.
	ErrAccessDenied Cause = "access denied by the server"
	// ErrNoSuchExport: ENOENT of a network file system, "reason given by
	// server: No such file or directory", mount.cifs's errors 2 and 6.
	ErrNoSuchExport Cause = "the server has no such export"
	// ErrVersionUnsupported: EPROTONOSUPPORT, EPROTO, EOPNOTSUPP of a network
	// file system; "requested NFS version or transport protocol is not
	// supported"; an SMB dialect that the server does not speak.
	ErrVersionUnsupported Cause = "the server does not support this protocol or version"
	// ErrStaleHandle: ESTALE; "Stale file handle".
	ErrStaleHandle Cause = "stale file handle"
	// ErrBadOption: an option that the file system does not know or a value
	// that it does not take (EINVAL with "Unknown parameter 'x'", "Bad value
	// for 'x'"; "an incorrect mount option was specified"). [Error].Option
	// names it where it could be told.
	ErrBadOption Cause = "bad mount option"
	// ErrWrongFilesystem: the device holds something else (EINVAL of a mount
	// from a device without a word about an option; "Can't find ext4
	// filesystem", "Invalid superblock magic number", mount(8)'s "wrong fs
	// type" for a device).
	ErrWrongFilesystem Cause = "wrong file system on the device"
	// ErrNeedsFsck: EUCLEAN, EBADMSG; "Structure needs cleaning".
	ErrNeedsFsck Cause = "the file system needs a check"
	// ErrReadOnlyDevice: EROFS; EACCES of a mount from a device; "is
	// write-protected".
	ErrReadOnlyDevice Cause = "the device is read-only"
	// ErrBusy: EBUSY; "target is busy", "already mounted". [Error].Holders names its
	// holders, where that was asked for.
	ErrBusy Cause = "busy"
	// ErrNotPermitted: EPERM, EACCES. [Error].Capability and [Error].Also say, where
	// known, what is missing or in the way.
	ErrNotPermitted Cause = "not permitted"
	// ErrNoTarget: the mount point, or a parent of it, is missing (ENOENT,
	// ENOTDIR; "mount point does not exist").
	ErrNoTarget Cause = "the mount point does not exist"
	// ErrNoSource: the device or directory to mount is missing or no block
	// device (ENOENT, ENXIO, ENOTBLK, ENOMEDIUM; "special device … does not
	// exist").
	ErrNoSource Cause = "the source does not exist"
	// ErrNotMounted: nothing is mounted there (EINVAL of umount2(2) and of a
	// remount; "not mounted").
	ErrNotMounted Cause = "not mounted"
	// ErrCanceled: the context was cancelled.
	ErrCanceled Cause = "gave up waiting"
	// ErrTargetIsLink: the last element of the target is a symbolic link.
	ErrTargetIsLink Cause = "the mount point is a symbolic link"
	// ErrTargetReplaced: what the target leads to changed during the call.
	ErrTargetReplaced Cause = "the mount point was replaced meanwhile"
	// ErrKindMismatch: ENOTDIR of a bind mount; "is not a directory".
	ErrKindMismatch Cause = "source and mount point are not both directories or both files"
	// ErrNoLockDaemon: an NFSv3 mount with locks and no statd to keep them.
	ErrNoLockDaemon Cause = "rpc.statd is not running on this node"
	// ErrNeedsCommand: host.ViaSystemCalls was asked for, and the mount cannot be
	// made by system calls alone.
	ErrNeedsCommand Cause = "the mount needs mount(8), which is not to be used here"
	// ErrUnwrapped: [Mount] or [Unmount] got a mounter that is no [ContextMounter].
	ErrUnwrapped Cause = "the mounter takes no context"
	// ErrNoIDMap: an idmapped mount cannot be made of it; a *host.IDMapError says
	// why.
	ErrNoIDMap Cause = "the files cannot be shown with other owners"
	// ErrIO: EIO; "can't read superblock", "Input/output error".
	ErrIO Cause = "the device cannot be read"
	// ErrLocked, beside ErrNotPermitted: the mount came from a more privileged mount
	// namespace, which locks it to the mounts it came with (EINVAL of umount2(2) for
	// a mount; mount_namespaces(7)).
	ErrLocked Cause = "the mount is locked by the namespace it came from"
	// ErrUserNamespace, beside ErrNotPermitted: the process has CAP_SYS_ADMIN
	// in a user namespace only, which does not do for this type or source
	// (user_namespaces(7)).
	ErrUserNamespace Cause = "a user namespace may not do this"
	// ErrSecurityPolicy, beside ErrNotPermitted: the process has CAP_SYS_ADMIN
	// in the initial user namespace and was denied all the same, as security
	// modules and seccomp filters do. It is not said of network file systems,
	// whose servers deny things too.
	ErrSecurityPolicy Cause = "denied despite CAP_SYS_ADMIN, as by a security module or a seccomp filter"
)

func (c Cause) Error() string { return string(c) }

// advice tells the node's owner what to do about a cause.
func (c Cause) advice(e *Error) string {
	server := serverOf(e.Source)
	switch c {
	case ErrHelperMissing:
		return adviseHelper(e)
	case ErrNoFilesystem:
		return adviseKernel(e)
	case ErrNameResolution:
		return fmt.Sprintf("The node itself must be able to resolve %s: check the spelling and the node's DNS or /etc/hosts, or use an IP address; names of cluster services are known inside pods only.", server)
	case ErrConnectionRefused:
		return fmt.Sprintf("Start the file server on %s, or open its port (NFS 2049, and 111 for NFSv3; SMB 445) to this node.", server)
	case ErrTimedOut:
		return fmt.Sprintf("Check that %s is up and that no firewall or missing route keeps this node from reaching it.", server)
	case ErrAccessDenied:
		return adviseDenied(e)
	case ErrNoSuchExport:
		return fmt.Sprintf("Check the path in %q, and that it is exported to this node, since NFSv4 servers may hide what is not; showmount -e %s lists what an NFS server exports, and to whom.", e.Source, server)
	case ErrVersionUnsupported:
		return fmt.Sprintf("Ask for a version that %s speaks with a mount option such as nfsvers=4.1, nfsvers=3 or, for SMB, vers=3.0.", server)
	case ErrNoLockDaemon:
		return "Start rpc.statd (rpc-statd.service) on this node, or use NFSv4, or keep locks local with the mount option nolock."
	case ErrStaleHandle:
		return "The server no longer knows this directory: check that the export still exists, then unmount it and mount it again; for a pod's volume, delete the pod and make it anew."
	case ErrBadOption:
		return adviseOption(e)
	default:
		return c.adviseLocal(e)
	}
}

// adviseLocal is the advice for causes on the node itself.
func (c Cause) adviseLocal(e *Error) string {
	switch c {
	case ErrWrongFilesystem:
		return fmt.Sprintf("Run blkid %s, and set the volume's file system type to the type that it prints.", e.Source)
	case ErrNeedsFsck:
		return fmt.Sprintf("Run fsck on %s while it is not mounted.", e.Source)
	case ErrReadOnlyDevice:
		return "Mount it read-only, or remove the write protection of the device."
	case ErrIO:
		return fmt.Sprintf("Check the device behind %s: the kernel log (dmesg) says what could not be read.", e.Source)
	case ErrBusy:
		return adviseBusy(e)
	case ErrNotPermitted:
		return adviseNotPermitted(e)
	case ErrLocked:
		return "Unmount it in the mount namespace it came from, or detach the whole tree that came with it."
	case ErrUserNamespace:
		return "Run this agent in the initial user namespace; a user namespace may mount only tmpfs, proc, sysfs, binds, overlay and FUSE, and cannot change what it inherited."
	case ErrSecurityPolicy:
		return "Look for a denial of AppArmor or SELinux in the kernel or audit log (dmesg, ausearch -m avc), and allow mount and umount2 in the seccomp and AppArmor profiles of the container this runs in."
	case ErrNoTarget:
		if !filepath.IsAbs(e.Target) {
			return "Give the mount point as an absolute path."
		}
		return fmt.Sprintf("Create %s first.", e.Target)
	case ErrNoSource:
		return fmt.Sprintf("Check that %s exists on this node.", e.Source)
	case ErrTargetIsLink:
		return fmt.Sprintf("Replace %s by a real directory; links are not followed so that a mount cannot be led astray.", e.Target)
	case ErrTargetReplaced:
		return fmt.Sprintf("Another process changes the parent directory of %s. Restrict write access to this agent.", e.Target)
	case ErrUnwrapped:
		return "Call host.Wrap of mount/host once for the mounter, where the program makes it, and give its result to everything that mounts."
	case ErrNeedsCommand:
		return "Allow mount(8) on this node (Via: ViaBest), or ask for what the kernel can do alone: a file system type it has itself, and no options that mount(8) carries out."
	case ErrNoIDMap:
		return "Put the volume on a file system whose mounts can be idmapped (ext4, xfs; btrfs since Linux 5.15, tmpfs since 6.3), mount it as root outside of user namespaces, or give its files the owners that the pod expects."
	case ErrKindMismatch:
		return "Bind a directory on a directory and a file on a file."
	}
	return "" // see silent
}

// silent are the causes that have no advice: there is nothing to do about them,
// or nothing is known.
func silent() []Cause { return []Cause{ErrUnknown, ErrNotMounted, ErrCanceled} }

func adviseOption(e *Error) string {
	if e.Option != "" {
		return fmt.Sprintf("Correct or remove the mount option %q.", e.Option)
	}
	return "Check the mount options' spelling and values; the kernel log (dmesg) often names the one it refused."
}

func adviseNotPermitted(e *Error) string {
	if e.Capability != "" {
		return fmt.Sprintf("Give this process %s: run it as root, or in a privileged container.", e.Capability)
	}
	if len(e.Also) > 0 {
		return "" // they have their own
	}
	return "Mounting needs root, or CAP_SYS_ADMIN in the namespace that owns the mounts."
}

func adviseBusy(e *Error) string {
	if len(e.Holders) > 0 {
		return "End what holds it, or let it go elsewhere."
	}
	if e.Op == OpUnmount {
		return fmt.Sprintf("Something still uses it: fuser -vm %s lists the processes, findmnt -R %s the mounts below.", e.Target, e.Target)
	}
	return fmt.Sprintf("See with findmnt whether %s is mounted already, and with lsof what uses it.", e.Source)
}

func adviseDenied(e *Error) string {
	server := serverOf(e.Source)
	switch {
	case fstypes.Family(e.FSType) != "nfs":
		return fmt.Sprintf("Allow this node's address on %s, or check user name and password.", server)
	case asksKerberos(e):
		return fmt.Sprintf("Kerberos was asked for (sec=krb5): rpc.gssd must run on this node with a keytab of its own, and %s must export with that flavour.", server)
	}
	return fmt.Sprintf("Allow this node's address on %s (/etc/exports), and the security flavour sec=sys: Kerberos is used only where the mount option sec=krb5 asks for it, with rpc.gssd on this node.", server)
}

// asksKerberos reports whether an NFS mount's options ask for Kerberos.
func asksKerberos(e *Error) bool {
	return slices.ContainsFunc(e.Options, func(word string) bool {
		return slices.ContainsFunc(strings.Split(word, ","), func(o string) bool { return strings.HasPrefix(o, "sec=krb5") })
	})
}

func adviseHelper(e *Error) string {
	if errors.Is(e.Err, exec.ErrNotFound) {
		return fmt.Sprintf("Install the mount command itself (util-linux) on this node: %s.", packageFor("mount", e.Distribution))
	}
	if _, program, ok := strings.Cut(e.FSType, "."); ok && fstypes.Family(e.FSType) == "fuse" {
		return fmt.Sprintf("Install the package that brings the program %s, and FUSE itself (%s), on this node.", program, packageFor("fuse", e.Distribution))
	}
	install := packageFor(fstypes.Family(e.FSType), e.Distribution)
	if install == "" {
		return fmt.Sprintf("Install the package that brings /sbin/mount.%s on this node.", e.FSType)
	}
	advice := fmt.Sprintf("Install the %s client (/sbin/mount.%s) on this node: %s.", familyName(e.FSType), e.FSType, install)
	if fstypes.Family(e.FSType) == "nfs" && asksKerberos(e) {
		advice += " Kerberos (sec=krb5) cannot do without it, and needs rpc.gssd and a keytab besides."
	}
	return advice
}

func familyName(fstype string) string {
	switch fstypes.Family(fstype) {
	case "nfs":
		return "NFS"
	case "cifs":
		return "SMB"
	case "ceph":
		return "Ceph"
	case "fuse":
		return "FUSE"
	}
	return fstypes.Family(fstype)
}

func adviseKernel(e *Error) string {
	module := fstypes.Family(e.FSType)
	text := fmt.Sprintf("Load the kernel's %s module on this node (modprobe %s), or run a kernel that has it; grep %s /proc/filesystems shows it once it is there.", e.FSType, module, e.FSType)
	if len(e.Distribution) > 0 {
		if install := packageFor("kernel", e.Distribution); install != "" {
			text += fmt.Sprintf(" Modules that are not installed by default come with: %s.", install)
		}
	}
	return text
}

// serverOf names the server of a source in a sentence.
func serverOf(source string) string {
	if rest, ok := strings.CutPrefix(source, "//"); ok {
		host, _, _ := strings.Cut(rest, "/")
		return host
	}
	if i := strings.Index(source, ":/"); i > 0 {
		return source[:i]
	}
	return "the server"
}

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
