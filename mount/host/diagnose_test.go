package host_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/mounttest"
)

const recorded = "../../testdata/mount"

// TestDiagnosis replays what util-linux, nfs-utils and cifs-utils print.
func TestDiagnosis(t *testing.T) {
	nfs := mount.Request{Source: "10.20.172.211:/nfs", FSType: "nfs"}
	cifs := mount.Request{Source: "//10.0.0.9/share", FSType: "cifs"}
	gluster := mount.Request{Source: "g1:/vol", FSType: "glusterfs"}
	disk := mount.Request{Source: "/dev/sdb1", FSType: "ext4"}
	ceph := mount.Request{Source: "10.0.0.7:6789:/", FSType: "ceph"}
	sshfs := mount.Request{Source: "host:/dir", FSType: "fuse.sshfs"}
	plan9 := mount.Request{Source: "host0", FSType: "9p"}
	const both, noHelper, noKernel, neither = "both", "no helper", "no kernel", "neither"
	tests := []struct {
		file    string
		request mount.Request
		has     string
		cause   error
		also    []mount.Cause
		advice  []string
	}{
		{"mount-nfs-no-helper.txt", nfs, noHelper, mount.ErrHelperMissing, nil, []string{"nfs-common on Debian and Ubuntu", "nfs-utils on RHEL and Fedora, Alpine, Arch", "nfs-client on SUSE", "/sbin/mount.nfs"}},
		{"mount-nfs-no-helper.txt", nfs, neither, mount.ErrHelperMissing, []mount.Cause{mount.ErrNoFilesystem}, []string{"nfs-common", "modprobe nfs"}},
		{"mount-nfs-no-helper.txt", nfs, both, mount.ErrBadOption, nil, []string{"options"}},
		{"mount-nfs-no-helper-old.txt", nfs, noHelper, mount.ErrHelperMissing, nil, []string{"nfs-common"}},
		{"mount-nfs-unknown-type.txt", nfs, neither, mount.ErrNoFilesystem, []mount.Cause{mount.ErrHelperMissing}, []string{"modprobe nfs", "nfs-common"}},
		{"mount-nfs-unknown-type.txt", nfs, noKernel, mount.ErrNoFilesystem, nil, []string{"modprobe nfs"}},
		{"mount-cifs-unknown-type.txt", cifs, neither, mount.ErrNoFilesystem, []mount.Cause{mount.ErrHelperMissing}, []string{"modprobe cifs", "cifs-utils"}},
		{"mount-glusterfs-unknown-type.txt", gluster, neither, mount.ErrHelperMissing, nil, []string{"glusterfs-client"}},
		{"nfs-no-device.txt", nfs, noKernel, mount.ErrNoFilesystem, nil, []string{"modprobe nfs"}},
		{"nfs-name.txt", nfs, both, mount.ErrNameResolution, nil, []string{"10.20.172.211", "DNS"}},
		{"nfs-name-later.txt", nfs, both, mount.ErrNameResolution, nil, nil},
		{"nfs-refused.txt", nfs, both, mount.ErrConnectionRefused, nil, []string{"2049"}},
		{"nfs-refused-verbose.txt", nfs, both, mount.ErrConnectionRefused, nil, nil},
		{"nfs-timeout.txt", nfs, both, mount.ErrTimedOut, nil, []string{"10.20.172.211 is up"}},
		{"nfs-unreachable.txt", nfs, both, mount.ErrTimedOut, nil, nil},
		{"nfs-denied.txt", nfs, both, mount.ErrAccessDenied, nil, []string{"/etc/exports"}},
		{"nfs-no-export.txt", nfs, both, mount.ErrNoSuchExport, nil, []string{"showmount -e 10.20.172.211"}},
		{"nfs-version.txt", nfs, both, mount.ErrVersionUnsupported, nil, []string{"nfsvers="}},
		{"nfs-protocol.txt", nfs, both, mount.ErrVersionUnsupported, nil, nil},
		{"nfs-statd.txt", nfs, both, mount.ErrNoLockDaemon, nil, []string{"nolock"}},
		{"nfs-option.txt", nfs, both, mount.ErrBadOption, nil, []string{"spelling"}},
		{"nfs-stale.txt", nfs, both, mount.ErrStaleHandle, nil, []string{"unmount it"}},
		{"nfs-not-permitted.txt", nfs, both, mount.ErrNotPermitted, nil, []string{"root"}},
		{"nfs-busy.txt", nfs, both, mount.ErrBusy, nil, []string{"findmnt"}},
		{"nfs-no-target.txt", nfs, both, mount.ErrNoTarget, nil, []string{"Create "}},
		{"nfs-target-file.txt", nfs, both, mount.ErrKindMismatch, nil, []string{"directory on a directory"}},
		{"cifs-denied.txt", cifs, both, mount.ErrAccessDenied, nil, []string{"password"}},
		{"cifs-no-share.txt", cifs, both, mount.ErrNoSuchExport, nil, []string{"//10.0.0.9/share"}},
		{"cifs-refused.txt", cifs, both, mount.ErrConnectionRefused, nil, []string{"on 10.0.0.9"}},
		{"cifs-down.txt", cifs, both, mount.ErrTimedOut, nil, nil},
		{"cifs-name.txt", cifs, both, mount.ErrNameResolution, nil, nil},
		{"cifs-version.txt", cifs, both, mount.ErrVersionUnsupported, nil, []string{"vers=3.0"}},
		{"cifs-no-kernel.txt", cifs, noKernel, mount.ErrNoFilesystem, nil, []string{"modprobe cifs"}},
		{"ext4-wrong.txt", disk, both, mount.ErrWrongFilesystem, nil, []string{"blkid", "/dev/sdb1"}},
		{"ext4-no-device.txt", disk, both, mount.ErrNoSource, nil, []string{"/dev/sdb1 exists"}},
		{"ext4-busy.txt", disk, both, mount.ErrBusy, nil, nil},
		{"ext4-fsck.txt", disk, both, mount.ErrNeedsFsck, nil, []string{"fsck"}},
		{"ext4-superblock.txt", disk, both, mount.ErrIO, nil, []string{"dmesg"}},
		{"ext4-write-protected.txt", disk, both, mount.ErrReadOnlyDevice, nil, []string{"read-only"}},
		{"not-root.txt", disk, both, mount.ErrNotPermitted, nil, nil},
		{"denied.txt", disk, both, mount.ErrNotPermitted, nil, nil},
		{"no-target.txt", disk, both, mount.ErrNoTarget, nil, nil},
		{"9p-option.txt", plan9, both, mount.ErrBadOption, nil, nil},
		{"new-api-option.txt", disk, both, mount.ErrBadOption, nil, []string{`option "frobnicate"`}},
		{"new-api-value.txt", disk, both, mount.ErrBadOption, nil, []string{`option "commit"`}},
		{"new-api-fsck.txt", disk, both, mount.ErrNeedsFsck, nil, nil},
		{"new-api-nfs-no-helper.txt", nfs, noHelper, mount.ErrHelperMissing, nil, []string{"nfs-common"}},
		{"ceph-denied.txt", ceph, both, mount.ErrAccessDenied, nil, []string{"password"}},
		{"ceph-laggy.txt", ceph, both, mount.ErrTimedOut, nil, []string{"10.0.0.7:6789 is up"}},
		{"ceph-name.txt", ceph, both, mount.ErrNameResolution, nil, nil},
		{"fuse-no-sshfs.txt", sshfs, both, mount.ErrHelperMissing, nil, []string{"sshfs"}},
		{"fuse-option.txt", sshfs, both, mount.ErrBadOption, nil, []string{`option "frobnicate"`}},
		{"fusermount-option.txt", sshfs, both, mount.ErrBadOption, nil, []string{`option "frobnicate"`}},
		{"silent.txt", nfs, both, mount.ErrUnknown, nil, nil},
	}
	var replayed []string
	for _, tc := range tests {
		t.Run(tc.file+", "+tc.has, func(t *testing.T) {
			var helpers, filesystems []string
			if tc.has != noHelper && tc.has != neither {
				helpers = []string{"nfs", "cifs", "ceph", "fuse"}
			}
			if tc.has != noKernel && tc.has != neither {
				filesystems = []string{"nfs", "cifs", "ceph", "9p"}
			}
			path, err := filepath.Abs(filepath.Join(recorded, tc.file))
			if err != nil {
				t.Fatal(err)
			}
			output, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			m := host.New(node(t, fakeCommand(t, "cat "+path+" >&2; exit 32\n"), helpers, filesystems))
			request := tc.request
			request.Target = t.TempDir()
			err = m.MountContext(t.Context(), request)
			e, ok := errors.AsType[*mount.Error](err)
			if !ok {
				t.Fatalf("err = %v", err)
			}
			if e.Cause != tc.cause || !slices.Equal(e.Also, tc.also) || !errors.Is(err, tc.cause) {
				t.Errorf("cause %q, also %q; want %q, %q", e.Cause, e.Also, tc.cause, tc.also)
			}
			for _, also := range tc.also {
				if !errors.Is(err, also) {
					t.Errorf("errors.Is does not find %q", also)
				}
			}
			if named := strings.Contains(e.Advice(), "option \""); named != (e.Option != "") {
				t.Errorf("the option is %q, and the advice: %s", e.Option, e.Advice())
			}
			for _, words := range tc.advice {
				if !strings.Contains(e.Advice(), words) {
					t.Errorf("the advice does not say %q: %s", words, e.Advice())
				}
			}
			if !strings.Contains(err.Error(), "Output: "+strings.TrimSpace(string(output))) || !strings.HasSuffix(err.Error(), e.Advice()) {
				t.Errorf("output or advice is missing:\n%v", err)
			}
		})
		replayed = append(replayed, tc.file)
	}
	files, err := os.ReadDir(recorded)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !slices.Contains(replayed, f.Name()) {
			t.Errorf("%s is not replayed", f.Name())
		}
	}
}

func TestLoadableModuleIsNotMissing(t *testing.T) {
	for name, file := range map[string][2]string{
		"by module":  {"modules.dep", "kernel/fs/nfs/nfs.ko.xz: kernel/net/sunrpc/sunrpc.ko.xz\n"},
		"built in":   {"modules.builtin", "kernel/fs/nfs/nfs.ko\n"},
		"by alias":   {"modules.alias", "alias fs-nfs nfs\n"},
		"other ones": {"modules.dep", "kernel/fs/nfsd/nfsd.ko: \n"},
	} {
		t.Run(name, func(t *testing.T) {
			path, err := filepath.Abs(filepath.Join(recorded, "mount-nfs-no-helper.txt"))
			if err != nil {
				t.Fatal(err)
			}
			config := node(t, fakeCommand(t, "cat "+path+" >&2; exit 32\n"), nil, nil)
			if err := os.WriteFile(filepath.Join(config.ModulesDir, file[0]), []byte(file[1]), 0o644); err != nil {
				t.Fatal(err)
			}
			err = host.New(config).MountContext(t.Context(), mount.Request{Source: "10.0.0.1:/e", Target: t.TempDir(), FSType: "nfs"})
			if lacks := name == "other ones"; !errors.Is(err, mount.ErrHelperMissing) || errors.Is(err, mount.ErrNoFilesystem) != lacks {
				t.Errorf("err = %v", err)
			}
		})
	}
}

func TestCausesOfErrors(t *testing.T) {
	text := func(s string) error { return errors.New(s) }
	mounting := []struct {
		err  error
		want error
	}{
		{unix.EBUSY, mount.ErrBusy},
		{unix.EPERM, mount.ErrNotPermitted},
		{unix.EACCES, mount.ErrNotPermitted},
		{unix.ENODEV, mount.ErrNoFilesystem},
		{unix.ENOENT, mount.ErrNoTarget},
		{unix.ESTALE, mount.ErrStaleHandle},
		{unix.ETIMEDOUT, mount.ErrTimedOut},
		{unix.EHOSTUNREACH, mount.ErrTimedOut},
		{unix.ECONNREFUSED, mount.ErrConnectionRefused},
		{unix.EROFS, mount.ErrReadOnlyDevice},
		{unix.EPROTONOSUPPORT, mount.ErrVersionUnsupported},
		{unix.EUCLEAN, mount.ErrNeedsFsck},
		{unix.ENOTBLK, mount.ErrNoSource},
		{unix.EIO, mount.ErrIO},
		{unix.EXDEV, mount.ErrUnknown},
		{fmt.Errorf("wrapped: %w", &os.PathError{Op: "mount", Path: "/x", Err: unix.EBUSY}), mount.ErrBusy},
		{context.Canceled, mount.ErrCanceled},
		{context.DeadlineExceeded, mount.ErrTimedOut},
		{mount.ErrAccessDenied, mount.ErrAccessDenied},
		{text("mount failed: exit status 32\nOutput: mount.nfs: access denied by server while mounting a:/b"), mount.ErrAccessDenied},
		{text("mount failed: wrong fs type, bad option, bad superblock on a:/b, missing codepage or helper program"), mount.ErrHelperMissing},
		{text("no idea"), mount.ErrUnknown},
	}
	request := mount.Request{Source: "a:/b", Target: "/t", FSType: "nfs"}
	for _, tc := range mounting {
		err := mount.Mount(t.Context(), host.Wrap(mounttest.Plain{Err: tc.err}, nil), request)
		if e, ok := errors.AsType[*mount.Error](err); !ok || e.Cause != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("mount: %v has the cause %v, want %v", tc.err, err, tc.want)
		}
	}
	err := mount.Mount(t.Context(), host.Wrap(mounttest.Plain{Err: text("wrong fs type, bad superblock, missing codepage or helper program")}, nil), mount.Request{Source: "/dev/sda", Target: "/t", FSType: "ext4"})
	if !errors.Is(err, mount.ErrWrongFilesystem) {
		t.Errorf("a device's file system has no helper: %v", err)
	}
	unmounting := []struct {
		err  error
		want []error
	}{
		{unix.EINVAL, []error{mount.ErrNotMounted}},
		{unix.ENOENT, []error{mount.ErrNoTarget, mount.ErrNotMounted}},
		{unix.EBUSY, []error{mount.ErrBusy}},
		{text("exit status 32: umount: /t: not mounted."), []error{mount.ErrNotMounted}},
		{text("exit status 32: umount: /t: target is busy."), []error{mount.ErrBusy}},
		{text("umount: /t: no mount point specified."), []error{mount.ErrNotMounted}},
	}
	for _, tc := range unmounting {
		_, err := mount.Unmount(t.Context(), host.Wrap(mounttest.Plain{Err: tc.err}, nil), "/t", mount.UnmountOptions{})
		for _, want := range tc.want {
			if !errors.Is(err, want) {
				t.Errorf("unmount: %v does not match %v: %v", tc.err, want, err)
			}
		}
	}
}
