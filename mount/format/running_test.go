package format_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// heldMkfs is a mkfs.ext4 that says that it runs and then waits to be released.
type heldMkfs struct {
	dir     string
	started *os.File
	release *os.File
}

func holdMkfs(t *testing.T) *heldMkfs {
	t.Helper()
	h := &heldMkfs{dir: t.TempDir()}
	testtool.Need(t, "mkfs.ext4")
	real, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"started", "release"} {
		if err := unix.Mkfifo(filepath.Join(h.dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	script := fmt.Sprintf("#!/bin/sh\necho $$ >%s/started\nread line <%s/release\nexec %s \"$@\"\n", h.dir, h.dir, real)
	if err := os.WriteFile(filepath.Join(h.dir, "mkfs.ext4"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	h.started, h.release = openFIFO(t, h.dir+"/started"), openFIFO(t, h.dir+"/release")
	return h
}

func openFIFO(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// wait waits for one mkfs to have started and returns its process.
func (h *heldMkfs) wait(t *testing.T) int {
	t.Helper()
	line, err := bufio.NewReader(h.started).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(line, &pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

func (h *heldMkfs) letGo(t *testing.T) {
	t.Helper()
	if _, err := h.release.WriteString("go\n"); err != nil {
		t.Fatal(err)
	}
}

func (h *heldMkfs) formatter() *format.Formatter {
	return format.New(format.Config{Mounter: host.New(host.Config{}), ToolDirs: []string{h.dir, "/usr/sbin", "/sbin"}})
}

func TestAMkfsOutlivesTheCallThatBeganIt(t *testing.T) {
	onHost(t, func(t *testing.T) {
		h, d, target := holdMkfs(t), loopdev.New(t, 64*mib), t.TempDir()
		f := h.formatter()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			_, err := f.FormatAndMount(ctx, request(d.Path, target, "ext4"))
			ended <- err
		}()
		pid := h.wait(t)
		cancel()
		err := <-ended
		if e, ok := errors.AsType[*format.Error](err); !ok || !errors.Is(err, format.ErrCanceled) || !e.Uncertain {
			t.Fatalf("while the mkfs runs: %v", err)
		}
		if err := unix.Kill(pid, 0); err != nil {
			t.Fatalf("the mkfs is gone: %v", err)
		}
		// For another process, here another Formatter, the device is taken; what
		// the script inherited is the lock.
		_, err = formatter().FormatAndMount(t.Context(), request(d.Path, target, "ext4"))
		if !errors.Is(err, format.ErrInUse) {
			t.Errorf("beside the mkfs: %v", err)
		}
		// The next call waits for it and mounts what it made.
		h.letGo(t)
		got, err := f.FormatAndMount(t.Context(), request(d.Path, target, "ext4"))
		if err != nil || got.Formatted || got.Found != "ext4" {
			t.Errorf("afterwards: %+v, %v", got, err)
		}
		if _, mounted := at(t, target); !mounted {
			t.Error("it is not mounted")
		}
	})
}

// dyingAgent is set in a process that formats a device and is killed meanwhile.
const dyingAgent = "PODVOL_TEST_DYING_AGENT"

func TestAMkfsOutlivesItsAgent(t *testing.T) {
	if where := os.Getenv(dyingAgent); where != "" {
		dir, device, _ := strings.Cut(where, ":")
		h := heldMkfs{dir: dir}
		h.formatter().FormatAndMount(context.Background(), request(device, dir, "ext4"))
		return
	}
	onHost(t, func(t *testing.T) {
		h, d, target := holdMkfs(t), loopdev.New(t, 64*mib), t.TempDir()
		agent := exec.Command("/proc/self/exe", "-test.run=^TestAMkfsOutlivesItsAgent$")
		agent.Env = append(os.Environ(), dyingAgent+"="+h.dir+":"+d.Path)
		if err := agent.Start(); err != nil {
			t.Fatal(err)
		}
		pid := h.wait(t)
		agent.Process.Kill()
		agent.Wait()
		process, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatalf("the mkfs is gone with its agent: %v", err)
		}
		defer unix.Close(process)
		if _, err := formatter().FormatAndMount(t.Context(), request(d.Path, target, "ext4")); !errors.Is(err, format.ErrInUse) {
			t.Errorf("for the next agent, while the mkfs runs: %v", err)
		}
		h.letGo(t)
		fds := []unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}
		if n, err := eintr.Get(func() (int, error) { return unix.Poll(fds, 60_000) }); n != 1 {
			t.Fatalf("the mkfs has not ended: %v", err)
		}
		got, err := formatter().FormatAndMount(t.Context(), request(d.Path, target, "ext4"))
		if err != nil || got.Formatted || got.Found != "ext4" {
			t.Errorf("for the next agent, afterwards: %+v, %v", got, err)
		}
	})
}

func TestOfManyAtOnceOneFormats(t *testing.T) {
	onHost(t, func(t *testing.T) {
		testtool.Need(t, "mkfs.ext4")
		d := loopdev.New(t, 64*mib)
		shared := formatter()
		var wg sync.WaitGroup
		var mu sync.Mutex
		formatted, busy := 0, 0
		for i := range 8 {
			f := shared
			if i%2 == 1 {
				f = formatter() // as another process would
			}
			target := t.TempDir()
			wg.Go(func() {
				for {
					got, err := f.FormatAndMount(t.Context(), request(d.Path, target, "ext4"))
					mu.Lock()
					if errors.Is(err, format.ErrInUse) {
						busy++
						mu.Unlock()
						continue // as a caller does after the error
					}
					if err != nil {
						t.Errorf("%v", err)
					}
					if got.Formatted {
						formatted++
					}
					mu.Unlock()
					return
				}
			})
		}
		wg.Wait()
		if formatted != 1 {
			t.Errorf("it was formatted %d times (%d were told it is in use)", formatted, busy)
		}
	})
}

func TestNoMoreThanMaxFormatsAtOnce(t *testing.T) {
	onHost(t, func(t *testing.T) {
		h := holdMkfs(t)
		mounter := host.New(host.Config{})
		dirs := []string{h.dir, "/usr/sbin", "/sbin"}
		for _, timeout := range []time.Duration{0, time.Millisecond} {
			f := format.New(format.Config{Mounter: mounter, ToolDirs: dirs, MaxFormats: 1, SlotTimeout: timeout})
			first, second := loopdev.New(t, 64*mib), loopdev.New(t, 64*mib)
			done := make(chan error, 2)
			start := func(ctx context.Context, d *loopdev.Device) {
				target := t.TempDir()
				go func() {
					_, err := f.FormatAndMount(ctx, request(d.Path, target, "ext4"))
					done <- err
				}()
			}
			start(t.Context(), first)
			h.wait(t)
			if timeout > 0 { // its time is over, so the second is let in
				start(t.Context(), second)
				h.wait(t)
				h.letGo(t)
				h.letGo(t)
				if err := errors.Join(<-done, <-done); err != nil {
					t.Error(err)
				}
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			start(ctx, second)
			err := <-done
			cancel()
			if e, ok := errors.AsType[*format.Error](err); !ok || !errors.Is(err, format.ErrCanceled) || e.Uncertain {
				t.Errorf("the second, with the only slot taken: %v", err)
			}
			h.letGo(t)
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestADeviceIsLookedAtAgainAfterAWait(t *testing.T) {
	onHost(t, func(t *testing.T) {
		h := holdMkfs(t)
		f := format.New(format.Config{Mounter: host.New(host.Config{}), ToolDirs: []string{h.dir, "/usr/sbin", "/sbin"}, MaxFormats: 1})
		first, second := loopdev.New(t, 64*mib), loopdev.New(t, 64*mib)
		type outcome struct {
			format.Result
			err error
		}
		start := func(d *loopdev.Device) chan outcome {
			done, target := make(chan outcome, 1), t.TempDir()
			go func() {
				got, err := f.FormatAndMount(t.Context(), request(d.Path, target, "ext4"))
				done <- outcome{got, err}
			}()
			return done
		}
		one := start(first)
		h.wait(t)
		// Written to before the slot is free: whether the first or the second look
		// sees it, it is not formatted.
		two := start(second)
		writeAt(t, second.Path, 12345, "precious")
		before := content(t, second)
		h.letGo(t)
		if got := <-one; got.err != nil {
			t.Error(got.err)
		}
		got := <-two
		if e, ok := errors.AsType[*format.Error](got.err); !ok || got.Formatted || e.Found.DataOffset != 12345 {
			t.Errorf("%+v", got)
		}
		if content(t, second) != before {
			t.Error("the device was changed")
		}
	})
}
