// Command vmrun runs a program in a virtual machine as util/testenv/vmtest has it, with
// the caller's environment and directory, and ends with its exit code. It is
// meant for go test:
//
//	go test -exec 'go run github.com/podvol/podvol/util/testenv/vmtest/vmrun' ./mount
//
// -exec starts one machine for each package; -p 1 keeps go test from starting
// several at a time.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/podvol/podvol/util/testenv/vmtest"
)

// exitTrouble is for what no program run in the machine has caused.
const exitTrouble = 125

func main() {
	var m vmtest.Machine
	console := flag.Bool("console", false, "show what the machine's kernel prints, on standard error")
	flag.StringVar(&m.Kernel, "kernel", "", "`directory` of an unpacked kernel package (Debian's newest kernel)")
	flag.IntVar(&m.MemoryMiB, "memory", 0, "memory in `MiB` (2048)")
	flag.IntVar(&m.CPUs, "cpus", 0, "`number` of processors (one, or with -kvm the host's, at most 4)")
	flag.BoolVar(&m.KVM, "kvm", false, "use the host's KVM instead of emulation")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: vmrun [flags] program [arguments]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(exitTrouble)
	}
	if *console {
		m.Console = os.Stderr
	}
	// go test ends a program that takes too long with SIGQUIT first.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	code, err := run(ctx, m, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "vmrun:", err)
		code = exitTrouble
	}
	os.Exit(code)
}

func run(ctx context.Context, m vmtest.Machine, words []string) (int, error) {
	path, err := exec.LookPath(words[0])
	if err != nil {
		return 0, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return 0, err
	}
	return m.Run(ctx, vmtest.Command{Path: path, Args: words[1:], Stdout: os.Stdout, Stderr: os.Stderr})
}
