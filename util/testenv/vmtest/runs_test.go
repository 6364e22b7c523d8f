package vmtest_test

import (
	"os/exec"
	"testing"

	"github.com/podvol/podvol/util/testenv/vmtest"
)

// What doc.go says that runs in a machine without further packages.
func TestWhatRuns(t *testing.T) {
	vmtest.Run(t, func(t *testing.T) {
		// Each begins where the one before has ended.
		for _, step := range []struct{ name, script string }{
			{"modules", `
				for m in iscsi_tcp iscsi_target_mod target_core_file cifs ksmbd ceph rbd dm_crypt nvme_tcp nvmet_tcp; do modprobe $m; done
				! modprobe nvme_loop 2>/dev/null`},
			{"configfs", `
				modprobe configfs
				mount -t configfs none /sys/kernel/config
				[ -d /sys/kernel/config/nvmet ]`},
			{"zram", `
				modprobe zram num_devices=1
				echo 32M >/sys/block/zram0/disksize
				mkfs.ext4 -q /dev/zram0
				mkdir /run/zram
				mount /dev/zram0 /run/zram
				umount /run/zram`},
			{"SCSI disk", `
				modprobe sd_mod
				modprobe scsi_debug dev_size_mb=16
				until [ -b /dev/sda ]; do sleep 0.05; done
				mkfs.ext4 -q /dev/sda`},
			{"NVMe over TCP", `
				truncate -s 32M "$TMPDIR/nvme"
				target=/sys/kernel/config/nvmet
				mkdir "$target/subsystems/one" "$target/ports/1"
				cd "$target/subsystems/one"
				echo 1 >attr_allow_any_host
				mkdir namespaces/1
				losetup -f --show "$TMPDIR/nvme" | tr -d '\n' >namespaces/1/device_path
				echo 1 >namespaces/1/enable
				cd "$target/ports/1"
				echo tcp >addr_trtype
				echo ipv4 >addr_adrfam
				echo 127.0.0.1 >addr_traddr
				echo 4420 >addr_trsvcid
				ln -s "$target/subsystems/one" subsystems/one
				echo transport=tcp,traddr=127.0.0.1,trsvcid=4420,nqn=one >/dev/nvme-fabrics
				until [ -b /dev/nvme0n1 ]; do sleep 0.05; done
				mkfs.ext4 -q /dev/nvme0n1
				echo 1 >/sys/class/nvme/nvme0/delete_controller`},
			{"iSCSI target", `
				truncate -s 32M "$TMPDIR/lun"
				disk=/sys/kernel/config/target/core/fileio_0/disk
				mkdir -p "$disk"
				echo "fd_dev_name=$TMPDIR/lun,fd_dev_size=33554432,fd_buffered_io=1" >"$disk/control"
				echo 1 >"$disk/enable"
				group=/sys/kernel/config/target/iscsi/iqn.2026-01.example.com:one/tpgt_1
				mkdir -p "$group/np/127.0.0.1:3260" "$group/lun/lun_0"
				ln -s "$disk" "$group/lun/lun_0/disk"
				echo 1 >"$group/enable"`},
			{"project quota of xfs", `
				truncate -s 320M "$TMPDIR/xfs"
				mkfs.xfs -q "$TMPDIR/xfs"
				mkdir /run/xfs
				mount -o loop,prjquota "$TMPDIR/xfs" /run/xfs
				mkdir /run/xfs/p
				xfs_quota -x -c 'project -s -p /run/xfs/p 42' -c 'limit -p bhard=1m 42' /run/xfs
				if dd if=/dev/zero of=/run/xfs/p/file bs=64k count=32 2>&1; then exit 1; fi
				umount /run/xfs`},
			{"project quota of ext4", `
				truncate -s 32M "$TMPDIR/ext4"
				mkfs.ext4 -q -O project,quota "$TMPDIR/ext4"
				mkdir /run/ext4
				mount -o loop,prjquota "$TMPDIR/ext4" /run/ext4
				umount /run/ext4`},
		} {
			t.Run(step.name, func(t *testing.T) {
				if out, err := exec.CommandContext(t.Context(), "/bin/sh", "-ec", step.script).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			})
		}
	})
}
