package vmtest

import (
	"debug/elf"
	_ "embed" // the guest's scripts
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

//go:embed guest/init
var guestInit []byte

//go:embed guest/start
var guestStart []byte

// guestTemp is the machine's TMPDIR.
const guestTemp = "/tmp/vmtest"

// neededModules are what guest/init needs itself.
func neededModules() []string {
	return []string{"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"}
}

// busybox returns the path of a busybox that runs without the host's libraries.
func busybox() (string, error) {
	found, err := exec.LookPath("busybox")
	if err != nil {
		return "", fmt.Errorf("%w: %w; install busybox-static", ErrUnavailable, err)
	}
	f, err := elf.Open(found)
	if err != nil {
		return "", fmt.Errorf("%w: %s: %w", ErrUnavailable, found, err)
	}
	defer f.Close()
	for _, segment := range f.Progs {
		if segment.Type == elf.PT_INTERP {
			return "", fmt.Errorf("%w: %s needs shared libraries; install busybox-static", ErrUnavailable, found)
		}
	}
	return found, nil
}

// initramfs returns the archive from which the machine starts, in a file that
// has no name and so cannot be left behind.
func initramfs(k *kernel, c Command, network bool) (*os.File, error) {
	var a archive
	for _, dir := range []string{"bin", "dev", "proc", "host", "changes", "root", "modules", "guest"} {
		a.directory(dir)
	}
	a.device("dev/console", 5, 1)
	box, err := busybox()
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(box)
	if err != nil {
		return nil, err
	}
	a.file("bin/busybox", 0o755, content)
	for _, name := range []string{"sh", "mount", "umount", "mkdir", "cp", "insmod", "switch_root"} {
		a.link("bin/"+name, "busybox")
	}
	if err := addModules(&a, k.modules); err != nil {
		return nil, err
	}
	a.file("init", 0o755, guestInit)
	a.file("guest/start", 0o644, guestStart)
	a.file("guest/settings", 0o644, settings(k, c, network))
	a.file("guest/command", 0o600, script(c))

	fd, err := unix.MemfdCreate("initramfs", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "initramfs")
	if _, err := f.Write(a.finish()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func addModules(a *archive, m *modulesOf) error {
	files, err := m.order(neededModules()...)
	if err != nil {
		return err
	}
	var order strings.Builder
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(m.dir, file))
		if err != nil {
			return err
		}
		if path.Ext(file) != ".ko" {
			return fmt.Errorf("%w: %s is compressed; unpack the modules and run depmod", ErrUnavailable, file)
		}
		a.file("modules/"+path.Base(file), 0o644, content)
		order.WriteString(path.Base(file) + "\n")
	}
	a.file("modules/order", 0o644, []byte(order.String()))
	return nil
}

func settings(k *kernel, c Command, network bool) []byte {
	return fmt.Appendf(nil, "MODULES=%s\nTEMP=%s\nONE_OUTPUT=%t\nNETWORK=%t\n", quote(k.modules.dir), quote(guestTemp), c.oneOutput(), network)
}

// script is the shell script that becomes the command.
func script(c Command) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "cd %s || exit 127\nexec /run/vmtest/busybox env -i", quote(c.Dir))
	// Later settings win.
	for _, setting := range append(c.Env[:len(c.Env):len(c.Env)], "TMPDIR="+guestTemp, guestVar+"="+guestReport) {
		b.WriteString(" \\\n" + quote(setting))
	}
	for _, word := range append([]string{c.Path}, c.Args...) {
		b.WriteString(" \\\n" + quote(word))
	}
	b.WriteString("\n")
	return []byte(b.String())
}

// quote makes word one word of a shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
