package host

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mountapi"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// The modes of nstest in which a cause can be produced.
const (
	rootOnly = "/root"
	userOnly = "/user"
)

// realCause produces a cause with this kernel, its mount(8) and its loopback
// network. Where it has several ways, all must tell the same.
type realCause struct {
	name string
	mode string // rootOnly, userOnly, or both if empty
	vias []Via
	fail func(t *testing.T, on causeScene) error
	want mount.Cause
	// also, option and capability are what the error must say beside it.
	also       mount.Cause
	option     string
	capability string
	// kernelSays is a part of the kernel's own message where it was made by
	// system calls.
	kernelSays string
	noAdvice   bool // nothing useful can be said
}

// causeScene is a mounter to fail, and an empty directory to fail on.
type causeScene struct {
	m      *Mounter
	target string
}

func (s causeScene) mount(t *testing.T, source, fstype string, options ...string) error {
	t.Helper()
	if s.m.config.Via == ViaCommand && !filepath.IsAbs(s.m.config.MountCommand) {
		testtool.Need(t, "mount")
	}
	return s.m.MountContext(t.Context(), mount.Request{Source: source, Target: s.target, FSType: fstype, Options: options})
}

const causeSecret = "hunter2-is-secret"

func anyVia() []Via      { return []Via{ViaSystemCalls, ViaCommand} }
func systemCalls() []Via { return []Via{ViaSystemCalls} }
func command() []Via     { return []Via{ViaCommand} }

func realCauses() []realCause {
	return slices.Concat(causesOfTypesAndOptions(), causesOfTargets(), causesOfDevices(), causesOfPermission(), causesOfServers())
}

func causesOfTypesAndOptions() []realCause {
	return []realCause{
		{name: "a type without its helper", vias: command(), want: mount.ErrHelperMissing, fail: func(t *testing.T, on causeScene) error {
			return on.mount(t, "none", "fuse.unheard") // the client of glusterfs may be there
		}},
		{name: "no mount(8)", vias: command(), want: mount.ErrHelperMissing, fail: func(t *testing.T, on causeScene) error {
			on.m.config.MountCommand = filepath.Join(t.TempDir(), "mount")
			return on.mount(t, "tmpfs", "tmpfs")
		}},
		{name: "an unknown type", mode: rootOnly, vias: anyVia(), want: mount.ErrNoFilesystem, fail: func(t *testing.T, on causeScene) error {
			return on.mount(t, "none", "unheardfs") // "no…" is for mount(8) every type but that
		}},
		{name: "an unknown option", vias: systemCalls(), want: mount.ErrBadOption, option: "frobnicate=1", kernelSays: "frobnicate", fail: func(t *testing.T, on causeScene) error {
			return on.mount(t, "tmpfs", "tmpfs", "frobnicate=1")
		}},
		{name: "an unknown option", vias: command(), want: mount.ErrBadOption, fail: func(t *testing.T, on causeScene) error {
			return on.mount(t, "tmpfs", "tmpfs", "frobnicate=1")
		}},
		{name: "a value that is none", vias: systemCalls(), want: mount.ErrBadOption, option: "size=large", kernelSays: "size", fail: func(t *testing.T, on causeScene) error {
			return on.mount(t, "tmpfs", "tmpfs", "size=large")
		}},
		{name: "a secret that is no option", vias: systemCalls(), want: mount.ErrBadOption, option: "password", fail: func(t *testing.T, on causeScene) error {
			return on.m.MountContext(t.Context(), mount.Request{Source: "tmpfs", Target: on.target, FSType: "tmpfs", Sensitive: []string{"password=" + causeSecret}})
		}},
		{name: "a secret that is no option", vias: command(), want: mount.ErrBadOption, fail: func(t *testing.T, on causeScene) error {
			testtool.Need(t, "mount")
			return on.m.MountContext(t.Context(), mount.Request{Source: "tmpfs", Target: on.target, FSType: "tmpfs", Sensitive: []string{"password=" + causeSecret}})
		}},
		{name: "a tag to search for", vias: systemCalls(), want: mount.ErrNeedsCommand, fail: func(t *testing.T, on causeScene) error {
			return on.mount(t, "LABEL=data", "ext4")
		}},
		{name: "a program that says nothing known", vias: command(), want: mount.ErrUnknown, noAdvice: true, fail: func(t *testing.T, on causeScene) error {
			on.m.config.MountCommand = filepath.Join(t.TempDir(), "mount")
			if err := os.WriteFile(on.m.config.MountCommand, []byte("#!/bin/sh\necho bother >&2\nexit 32\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			return on.mount(t, "tmpfs", "tmpfs")
		}},
	}
}

func causesOfTargets() []realCause {
	return []realCause{
		{name: "no mount point", vias: anyVia(), want: mount.ErrNoTarget, fail: func(t *testing.T, on causeScene) error {
			on.target += "/missing/dir"
			return on.mount(t, "tmpfs", "tmpfs")
		}},
		{name: "a file on the way", vias: anyVia(), want: mount.ErrNoTarget, fail: func(t *testing.T, on causeScene) error {
			file := causeFile(t)
			on.target = file + "/dir"
			return on.mount(t, "tmpfs", "tmpfs")
		}},
		{name: "a link", vias: anyVia(), want: mount.ErrTargetIsLink, fail: func(t *testing.T, on causeScene) error {
			link := filepath.Join(t.TempDir(), "link")
			if err := os.Symlink(on.target, link); err != nil {
				t.Fatal(err)
			}
			on.target = link
			return on.mount(t, "tmpfs", "tmpfs")
		}},
		{name: "a file on a directory", vias: anyVia(), want: mount.ErrKindMismatch, fail: func(t *testing.T, on causeScene) error {
			return on.mount(t, causeFile(t), "", "bind")
		}},
		{name: "nothing to bind", vias: anyVia(), want: mount.ErrNoSource, fail: func(t *testing.T, on causeScene) error {
			return on.mount(t, on.target+"/missing", "", "bind")
		}},
		{name: "unmount of a directory", vias: anyVia(), want: mount.ErrNotMounted, noAdvice: true, fail: func(t *testing.T, on causeScene) error {
			_, err := on.m.UnmountContext(t.Context(), on.target, mount.UnmountOptions{})
			return err
		}},
		{name: "remount of a directory", vias: systemCalls(), want: mount.ErrNotMounted, noAdvice: true, fail: func(t *testing.T, on causeScene) error {
			return on.mount(t, "", "tmpfs", "remount,ro")
		}},
		{name: "unmount of what is in use", vias: systemCalls(), want: mount.ErrBusy, fail: func(t *testing.T, on causeScene) error {
			if err := on.mount(t, "tmpfs", "tmpfs"); err != nil {
				t.Fatal(err)
			}
			open, err := os.Create(filepath.Join(on.target, "open"))
			if err != nil {
				t.Fatal(err)
			}
			defer open.Close()
			_, err = on.m.UnmountContext(t.Context(), on.target, mount.UnmountOptions{Holders: true})
			if e, ok := errors.AsType[*mount.Error](err); !ok || len(e.Holders) != 1 || e.Holders[0].PID != os.Getpid() {
				t.Errorf("the holder is this process: %+v", e)
			}
			return err
		}},
		{name: "a context that was cancelled", vias: anyVia(), want: mount.ErrCanceled, noAdvice: true, fail: func(t *testing.T, on causeScene) error {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			return on.m.MountContext(ctx, mount.Request{Source: "tmpfs", Target: on.target, FSType: "tmpfs"})
		}},
	}
}

func causeFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// mount(8) itself mounts a write-protected device read-only, so that this cause
// is one of system calls.
func causesOfDevices() []realCause {
	return []realCause{
		{name: "no such device", mode: rootOnly, vias: anyVia(), want: mount.ErrNoSource, fail: func(t *testing.T, on causeScene) error {
			return on.mount(t, "/dev/podvol-has-none", "ext4")
		}},
		{name: "no block device", mode: rootOnly, vias: systemCalls(), want: mount.ErrNoSource, fail: func(t *testing.T, on causeScene) error {
			return on.mount(t, "/dev/null", "ext4")
		}},
		{name: "an option that ext4 does not know", mode: rootOnly, vias: systemCalls(), want: mount.ErrBadOption, option: "frobnicate", kernelSays: "frobnicate", fail: func(t *testing.T, on causeScene) error {
			return on.mount(t, extDevice(t).Path, "ext4", "frobnicate")
		}},
		{name: "ext4 where there is swap", mode: rootOnly, vias: anyVia(), want: mount.ErrWrongFilesystem, fail: func(t *testing.T, on causeScene) error {
			d := loopdev.New(t, 16<<20)
			causeTool(t, "mkswap", d.Path)
			return on.mount(t, d.Path, "ext4")
		}},
		{name: "xfs where there is ext4", mode: rootOnly, vias: anyVia(), want: mount.ErrWrongFilesystem, fail: func(t *testing.T, on causeScene) error {
			return on.mount(t, extDevice(t).Path, "xfs")
		}},
		{name: "ext4 without its root directory", mode: rootOnly, vias: anyVia(), want: mount.ErrNeedsFsck, fail: func(t *testing.T, on causeScene) error {
			d := extDevice(t)
			causeTool(t, "debugfs", "-w", "-R", "clri <2>", d.Path)
			return on.mount(t, d.Path, "ext4")
		}},
		{name: "a write-protected device", mode: rootOnly, vias: systemCalls(), want: mount.ErrReadOnlyDevice, fail: func(t *testing.T, on causeScene) error {
			return on.mount(t, loopdev.Of(t, extDevice(t).Backing, unix.LO_FLAGS_READ_ONLY).Path, "ext4")
		}},
		{name: "a device that cannot be read", mode: rootOnly, vias: anyVia(), want: mount.ErrIO, fail: func(t *testing.T, on causeScene) error {
			return on.mount(t, extDevice(t).Cut(t, 0).Path, "ext4")
		}},
		{name: "a device that is claimed", mode: rootOnly, vias: anyVia(), want: mount.ErrBusy, fail: func(t *testing.T, on causeScene) error {
			d := extDevice(t)
			claim, err := os.OpenFile(d.Path, os.O_RDONLY|unix.O_EXCL, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer claim.Close()
			return on.mount(t, d.Path, "ext4")
		}},
	}
}

func extDevice(t *testing.T) *loopdev.Device {
	t.Helper()
	d := loopdev.New(t, 16<<20)
	causeTool(t, "mkfs.ext4", "-q", "-F", d.Path)
	return d
}

func causeTool(t *testing.T, name string, args ...string) {
	t.Helper()
	testtool.Need(t, name)
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

func causesOfPermission() []realCause {
	return []realCause{
		{name: "a device in a user namespace", mode: userOnly, vias: systemCalls(), want: mount.ErrNotPermitted, also: mount.ErrUserNamespace, fail: func(t *testing.T, on causeScene) error {
			return on.mount(t, "/dev/loop0", "ext4")
		}},
		{name: "what a user namespace inherited", mode: userOnly, vias: anyVia(), want: mount.ErrNotPermitted, also: mount.ErrLocked, fail: func(t *testing.T, on causeScene) error {
			_, err := on.m.UnmountContext(t.Context(), "/proc", mount.UnmountOptions{})
			return err
		}},
	}
}

// filteredCalls is a cause that nothing else can be produced after in a process.
func filteredCalls() realCause {
	return realCause{name: "a filter of system calls", vias: systemCalls(), want: mount.ErrNotPermitted, also: mount.ErrSecurityPolicy, fail: func(t *testing.T, on causeScene) error {
		denyMounts(t)
		return on.mount(t, "tmpfs", "tmpfs")
	}}
}

// denyMounts makes every mount of this process fail with EPERM, as the filter
// of a container engine does. It cannot be undone, so it must come last.
func denyMounts(t *testing.T) {
	t.Helper()
	// A program of seccomp(2): load the number of the call, compare, return.
	const load, jumpIfEqual, give = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	denied := []uint32{unix.SYS_MOUNT, unix.SYS_FSOPEN, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE}
	program := []unix.SockFilter{{Code: load}}
	for i, call := range denied {
		program = append(program, unix.SockFilter{Code: jumpIfEqual, K: call, Jt: uint8(len(denied) - i)})
	}
	program = append(program,
		unix.SockFilter{Code: give, K: 0x7fff0000},                      // SECCOMP_RET_ALLOW
		unix.SockFilter{Code: give, K: 0x00050000 | uint32(unix.EPERM)}) // SECCOMP_RET_ERRNO
	installFilter(t, program)
}

func causesOfServers() []realCause {
	return []realCause{
		{name: "a name that does not resolve", vias: systemCalls(), want: mount.ErrNameResolution, fail: func(t *testing.T, on causeScene) error {
			on.m.api = nfsKernel{}
			on.m.config.Resolver = noNames{}
			return on.mount(t, "nfs.example:/export", "nfs")
		}},
		{name: "a server that refuses", vias: systemCalls(), want: mount.ErrConnectionRefused, fail: func(t *testing.T, on causeScene) error {
			on.m.api = nfsKernel{}
			listener, port := listen(t)
			listener.Close() // the port has no listener any more
			return on.mount(t, "127.0.0.1:/export", "nfs", "nfsvers=4.1", "port="+port)
		}},
		{name: "a server that does not answer", vias: systemCalls(), want: mount.ErrTimedOut, fail: func(t *testing.T, on causeScene) error {
			on.m.api = nfsKernel{}
			_, port := listen(t) // it never accepts
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			return on.m.MountContext(ctx, mount.Request{Source: "127.0.0.1:/export", Target: on.target, FSType: "nfs", Options: []string{"nfsvers=4.1", "port=" + port}})
		}},
	}
}

func listen(t *testing.T) (listener net.Listener, port string) {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener, strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
}

// nfsKernel is this kernel as if it had an NFS client, which is asked for before
// a server is; no server here gets as far as to be mounted.
type nfsKernel struct{ mountapi.Kernel }

func (k nfsKernel) Fsopen(fstype string) (int, error) {
	if fstype == "nfs" {
		fstype = "tmpfs"
	}
	return k.Kernel.Fsopen(fstype)
}

type noNames struct{}

func (noNames) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

// recordedCauses are those that no test brings about; what tools print for them
// is recorded, and replayed by TestDiagnosis.
func recordedCauses() map[string]string {
	return map[string]string{"ErrStaleHandle": "nfs-stale.txt"}
}

// testedElsewhere are those that need a scene of their own, or a kernel with an
// NFS client and server.
func testedElsewhere() map[string]string {
	return map[string]string{
		"ErrNoIDMap":            "TestIDMapsAreRefused",
		"ErrUnwrapped":          "TestUnwrappedMounterIsRefused",
		"ErrTargetReplaced":     "TestCommandLedElsewhere",
		"ErrAccessDenied":       "TestNFSWithoutHelper",
		"ErrNoSuchExport":       "TestNFSWithoutHelper",
		"ErrVersionUnsupported": "TestNFSWithoutHelper",
		"ErrNoLockDaemon":       "TestNFSWithoutHelper",
	}
}

// TestCausesForReal has all of a mode in one process: in an emulated machine,
// starting it takes longer than they do.
func TestCausesForReal(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		for _, c := range realCauses() {
			if strings.HasSuffix(t.Name(), c.mode) { // the kernel has another answer elsewhere
				c.produce(t)
			}
		}
	})
	t.Run("filtered", func(t *testing.T) {
		nstest.RunAs(t, []nstest.Mode{nstest.Root}, filteredCalls().produce)
	})
}

// produce has the cause told by each of its vias.
func (c realCause) produce(t *testing.T) {
	for _, via := range c.vias {
		t.Run(c.name+" by "+via.String(), func(t *testing.T) {
			target := t.TempDir()
			t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) }) // few are mounted
			c.assert(t, via, c.fail(t, causeScene{New(Config{Via: via}), target}))
		})
	}
}

func (c realCause) assert(t *testing.T, via Via, err error) {
	t.Helper()
	e, ok := errors.AsType[*mount.Error](err)
	if !ok {
		t.Fatalf("the error is %v", err)
	}
	if e.Cause != c.want || !errors.Is(err, c.want) {
		t.Errorf("the cause is %q, want %q: %v", e.Cause, c.want, err)
	}
	if c.also != "" && !errors.Is(err, c.also) {
		t.Errorf("beside it there is no %q: %v", c.also, err)
	}
	if c.option != "" && e.Option != c.option {
		t.Errorf("the option is %q, want %q: %v", e.Option, c.option, err)
	}
	if e.Capability != c.capability {
		t.Errorf("the capability is %q, want %q", e.Capability, c.capability)
	}
	if !strings.Contains(e.Kernel, c.kernelSays) {
		t.Errorf("the kernel says %q, want %q in it", e.Kernel, c.kernelSays)
	}
	if (e.Advice() == "") != c.noAdvice {
		t.Errorf("the advice is %q", e.Advice())
	}
	if byCommand := e.Command != ""; via == ViaSystemCalls && byCommand {
		t.Errorf("%q was run", e.Command)
	}
	if strings.Contains(err.Error(), causeSecret) {
		t.Errorf("the secret is shown: %v", err)
	}
	if e.Uncertain {
		t.Errorf("it is uncertain whether it is mounted: %v", err)
	}
}

// TestEveryCauseIsProduced fails for a cause that is neither produced for real
// nor recorded.
func TestEveryCauseIsProduced(t *testing.T) {
	real := map[mount.Cause]bool{}
	for _, c := range append(realCauses(), filteredCalls()) {
		real[c.want], real[c.also] = true, true
	}
	tests := testNames(t)
	for name, cause := range declaredCauses(t) {
		file, isRecorded := recordedCauses()[name]
		other, isElsewhere := testedElsewhere()[name]
		switch {
		case real[cause]:
			if isRecorded || isElsewhere {
				t.Errorf("%s is produced here, and need not be listed", name)
			}
		case isRecorded:
			output, err := os.ReadFile(filepath.Join("../../testdata/mount", file))
			if got := mount.CauseOfOutput(string(output)); err != nil || got != cause {
				t.Errorf("%s in %s: %q, %v", name, file, got, err)
			}
		case !isElsewhere || !tests[other]:
			t.Errorf("%s is produced by no test", name)
		}
	}
}

// declaredCauses are the constants of type Cause in cause.go.
func declaredCauses(t *testing.T) map[string]mount.Cause {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../cause.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	causes := map[string]mount.Cause{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Cause" {
			text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			causes[spec.Names[0].Name] = mount.Cause(text)
		}
		return true
	})
	if len(causes) < 20 {
		t.Fatalf("only %d causes are declared", len(causes))
	}
	return causes
}

func testNames(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				names[f.Name.Name] = true
			}
		}
	}
	return names
}
