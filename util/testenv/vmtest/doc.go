// Package vmtest runs tests in a Linux kernel of their own: Debian's, under
// QEMU. Tests of file systems and servers that the host's kernel lacks or must
// not be bothered with run there as root, and so do the tests of any package
// on a kernel older than the host's.
//
// # What it needs
//
// A Linux host on amd64 with the Debian packages qemu-system-x86 and
// busybox-static. The kernel is that of Debian's package linux-image-amd64,
// fetched with apt-get and unpacked once below the user's cache directory; it
// is not installed, and root is not needed. Elsewhere than on Debian,
// PODVOL_VMTEST_KERNEL names a directory into which a kernel package was
// unpacked (boot/vmlinuz-*, lib/modules/*); it also chooses another kernel.
//
// # How to use it
//
// A test that needs the machine calls [Run]:
//
//	func TestExport(t *testing.T) {
//		vmtest.Run(t, func(t *testing.T) {
//			// root of the machine's kernel
//			t.Run("version 3", …)
//			t.Run("version 4.2", …)
//		})
//	}
//
// It runs only where PODVOL_VMTEST is set, and then it must:
//
//	PODVOL_VMTEST=1 go test ./volume/plugins/nfs
//
// One Run is one boot, of a few seconds; sub-tests share it. All tests of
// a package, those that know nothing of this package too, run in one boot
// through the command vmrun:
//
//	go test -exec 'go run github.com/podvol/podvol/util/testenv/vmtest/vmrun' ./mount
//
// A Run within such a machine uses that machine. Emulation makes computing ten
// times slower and more; PODVOL_VMTEST=kvm uses the host's KVM instead, where
// that works.
//
// # What a test finds in the machine
//
// The host's files at their paths, with whatever the calling user may read.
// The root can be written; what is written is lost at the end and never
// reaches the host. TMPDIR is an empty tmpfs. /proc, /sys, /dev and /run are the
// machine's own, /sys/fs/cgroup is a cgroup2, modules are loaded on demand
// (loop, ext4, xfs, btrfs, overlay, fuse, nfs, nfsd, …). No service runs. The
// only network is the loopback interface, with 127.0.0.1 and ::1, unless [Machine].Network adds
// one. Arguments,
// environment and working directory are the caller's; standard input is empty.
// At SIGUSR2 the first process shuts the machine down as a node is: it ends all
// processes, unmounts what it can, and powers off ([ErrPoweredOff]).
//
// # What runs in it
//
// Tried on Debian 12's kernel 6.1, by emulation; the seconds are those of the
// set-up on a machine with nothing else to do. Unless a package is named, the
// kernel and what .ci/run installs suffice. There is no udev: devices appear
// under the kernel's names, a disk of SCSI needs "modprobe sd_mod", and what a
// daemon of udev would load must be loaded. A configfs needs "modprobe configfs"
// and "mount -t configfs none /sys/kernel/config".
//
//	systemd        4 s   [StartSystemd]; services and scopes; no D-Bus, no journal
//	FUSE daemons         under systemd-run --scope: package mount's tests
//	NFS            1 s   kernel nfsd and nfs-ganesha: util/testenv/nfsserver
//	NVMe/TCP       2 s   nvmet_tcp by configfs, nvme_tcp by /dev/nvme-fabrics
//	NVMe loop      -     the kernel lacks nvme_loop
//	iSCSI          3 s   iscsi_target_mod and target_core_file by configfs, which
//	                     suffices; initiator: iscsid and iscsiadm of open-iscsi, with
//	                     libisns0 and libopeniscsiusr, unpacked
//	SCSI disks     1 s   tcm_loop, target_core_iblock, sd_mod: util/testenv/lio
//	               2 s   scsi_debug, sd_mod
//	zram           1 s   zram
//	dm-crypt       4 s   cryptsetup of cryptsetup-bin, PBKDF2 with few iterations
//	project quota  2 s   xfs and ext4, on a loop device
//	CIFS           -     cifs and ksmbd load and a session is opened, but shares of
//	                     ksmbd-tools' daemon were not found; samba was not tried
//	Ceph          12 s   ceph and rbd, with a cluster outside: util/testenv/cephcluster
//
// Like every package below util, it carries no promise of compatibility.
package vmtest
