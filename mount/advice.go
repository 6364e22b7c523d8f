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
		return fmt.Sprintf("See with blkid what is on %s, and set the volume's file system type to that.", e.Source)
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
		return fmt.Sprintf("Find out who else changes the directory of %s: nobody but this agent should be able to.", e.Target)
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
