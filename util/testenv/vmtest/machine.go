package vmtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Machine describes a virtual machine. The zero value is usable; a Machine is
// not changed by its use and may be used by several goroutines.
type Machine struct {
	// Kernel is a directory into which a kernel's package was unpacked, with
	// modules that are not compressed and depmod's tables. Empty means the one
	// that PODVOL_VMTEST_KERNEL names, or else Debian's newest, which is fetched
	// at its first use.
	Kernel string
	// MemoryMiB is the machine's memory; 0 means 2048.
	MemoryMiB int
	// CPUs is the number of processors; 0 means one, or with KVM that of the host,
	// but at most 4: emulated ones are slower together, as they wait for each other.
	CPUs int
	// KVM uses the host's hardware instead of emulating it.
	KVM bool
	// Network gives the machine a network card, eth0: what connects to an address that is not the
	// machine's own is connected by QEMU, in the network namespace of the caller's thread.
	Network bool
	// KernelArgs are added to the kernel's command line.
	KernelArgs []string
	// Console receives what the machine's kernel prints, at every level of
	// importance. If it is nil, only warnings are kept, for errors.
	Console io.Writer
}

// Command is what a machine runs.
type Command struct {
	// Path is the program's absolute path on the host; Args does not repeat it.
	Path string
	Args []string
	// Env is the whole environment, except that TMPDIR is the machine's; the
	// later of two settings counts. Nil means the caller's.
	Env []string
	// Dir is the working directory; empty means the caller's.
	Dir string
	// Stdout and Stderr receive the output as it comes; nil drops it. If both
	// are the same, they are written to in order and by one goroutine only.
	Stdout, Stderr io.Writer
}

// oneOutput tells whether both outputs go to one writer. As in os/exec, writers
// that cannot be compared are two.
func (c Command) oneOutput() (same bool) {
	defer func() { _ = recover() }()
	return c.Stdout != nil && c.Stdout == c.Stderr
}

// bootTimeout is for a busy host without KVM; two to four seconds are usual.
const bootTimeout = 3 * time.Minute

// Run starts a machine, runs c in it as root and returns c's exit code, which
// is 128 and the signal's number if a signal has ended it. When Run returns,
// the machine is gone and has left no file. It ends the machine when ctx ends.
//
// The error is nil whenever c has run to its end, whatever its exit code; else
// it is an [*Error] or wraps [ErrUnavailable].
func (m Machine) Run(ctx context.Context, c Command) (code int, err error) {
	result, err := m.run(ctx, c)
	if err != nil {
		return -1, err
	}
	return result.code, nil
}

func (m Machine) run(ctx context.Context, c Command) (*result, error) {
	if c.Env == nil {
		c.Env = os.Environ()
	}
	if c.Dir == "" {
		var err error
		if c.Dir, err = os.Getwd(); err != nil {
			return nil, err
		}
	}
	k, err := openKernel(ctx, m.Kernel)
	if err != nil {
		return nil, err
	}
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return nil, fmt.Errorf("%w: %w; install qemu-system-x86", ErrUnavailable, err)
	}
	initrd, err := initramfs(k, c, m.Network)
	if err != nil {
		return nil, err
	}
	defer initrd.Close()

	// The parent-death signal is sent when the thread that forked ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	cmd := exec.CommandContext(ctx, qemu, m.arguments(k)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	var monitor tail
	cmd.Stdout, cmd.Stderr = &monitor, &monitor
	var console tail
	ports, err := openPorts(c, &console, m.Console)
	if err != nil {
		return nil, err
	}
	ports.onUp = time.AfterFunc(bootTimeout, func() { stop(fmt.Errorf("%w within %v", ErrBoot, bootTimeout)) }).Stop
	ports.onEnd = func() { stop(errEnded) }
	cmd.ExtraFiles = append([]*os.File{initrd}, ports.remote...)
	if err := cmd.Start(); err != nil {
		ports.abandon()
		return nil, fmt.Errorf("start %s: %w", qemu, err)
	}
	outcome := ports.copy()
	waitErr := cmd.Wait()
	result := outcome()
	if result.ended && result.failure == "" && result.copyErr == nil {
		return result, nil
	}
	return nil, &Error{Console: console.String(), Monitor: monitor.String(), Err: m.why(ctx, result, console.String(), waitErr)}
}

// errEnded is the cause with which the machine of a complete result is ended.
var errEnded = errors.New("the command has ended")

// why says why there is no result.
func (m Machine) why(ctx context.Context, r *result, console string, waitErr error) error {
	cause := context.Cause(ctx)
	switch {
	case r.failure != "":
		return fmt.Errorf("%w: %s", ErrBoot, r.failure)
	case r.copyErr != nil:
		return fmt.Errorf("pass on the command's output: %w", r.copyErr)
	case cause != nil && !errors.Is(cause, errEnded):
		return cause
	case r.up && strings.Contains(console, "reboot: Power down"):
		return fmt.Errorf("%w: %w", ErrDied, ErrPoweredOff)
	case r.up:
		return fmt.Errorf("%w (%v)", ErrDied, exitText(waitErr))
	}
	return fmt.Errorf("%w (%v)", ErrBoot, exitText(waitErr))
}

func exitText(err error) string {
	if err == nil {
		return "QEMU ended by itself"
	}
	return "QEMU: " + err.Error()
}

// firstFD is the descriptor that QEMU has for the first of cmd.ExtraFiles: the
// initramfs; the ports follow.
const firstFD = 3

func (m Machine) arguments(k *kernel) []string {
	memory, cpus := m.MemoryMiB, m.CPUs
	if memory == 0 {
		memory = 2048
	}
	switch {
	case cpus > 0:
	case m.KVM:
		cpus = min(runtime.NumCPU(), 4)
	default:
		cpus = 1
	}
	// A panic and an oops reboot at once, and -no-reboot makes that QEMU's end.
	// oops=panic, since a test cannot trust a kernel that had one. The HPET, since
	// a kernel that boots on a busy host may take its TSC for several times as slow
	// as it is: time limits were over long before their time.
	kernelArgs := []string{"console=ttyS0", "panic=-1", "oops=panic", "mitigations=off", "apparmor=0", "audit=0",
		"clocksource=hpet", "tsc=reliable", "no_timer_check"}
	if m.Console == nil {
		kernelArgs = append(kernelArgs, "quiet")
	}
	kernelArgs = append(kernelArgs, m.KernelArgs...)
	// Emulated, each of these costs time at every change of an address space or at
	// every byte that is copied.
	accel, cpu := "tcg,thread=multi", "max,la57=off,pcid=off,smap=off,smep=off,umip=off,pku=off,erms=off,fsrm=off"
	if m.KVM {
		accel, cpu = "kvm", "host"
	}
	nic := "none"
	if m.Network {
		nic = "user,model=virtio-net-pci,ipv6=off"
	}
	args := []string{
		"-no-user-config", "-nodefaults", "-display", "none", "-no-reboot", "-nic", nic,
		"-machine", "pc", "-accel", accel, "-cpu", cpu, "-smp", strconv.Itoa(cpus), "-m", strconv.Itoa(memory),
		"-kernel", k.image, "-initrd", "/proc/self/fd/" + strconv.Itoa(firstFD), "-append", strings.Join(kernelArgs, " "),
		"-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-serial-pci",
	}
	for i, name := range portNames() {
		args = append(args,
			"-add-fd", fmt.Sprintf("fd=%d,set=%d", firstFD+1+i, i),
			"-chardev", fmt.Sprintf("file,id=%s,path=/dev/fdset/%d,append=on", name, i))
		if name == portConsole {
			args = append(args, "-serial", "chardev:"+name)
			continue
		}
		args = append(args, "-device", fmt.Sprintf("virtserialport,chardev=%s,nr=%d", name, i))
	}
	return args
}
