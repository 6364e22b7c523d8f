package main

import (
	"bufio"
	"context"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/terminal"
)

// watching is a podvol status --watch, whose output is read by lines.
type watching struct {
	t     *testing.T
	lines *bufio.Scanner
	stop  func() (code int)
}

func watchStatusOf(t *testing.T, root string, out io.WriteCloser, read io.Reader, args ...string) *watching {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan int, 1)
	go func() {
		code := run(ctx, append([]string{"status", "--watch", "--root-dir", root}, args...), streams{in: strings.NewReader(""), out: out, err: io.Discard})
		out.Close()
		ended <- code
	}()
	w := &watching{t: t, lines: bufio.NewScanner(read)}
	w.stop = func() int {
		cancel()
		go func() { // so that it can write its last line
			for w.lines.Scan() {
			}
		}()
		return <-ended
	}
	t.Cleanup(cancel)
	return w
}

// until reads until a line has all these texts.
func (w *watching) until(texts ...string) {
	w.t.Helper()
	for w.lines.Scan() {
		has := true
		for _, text := range texts {
			has = has && strings.Contains(w.lines.Text(), text)
		}
		if has {
			return
		}
	}
	w.t.Fatalf("it ended before a line had %q: %v", texts, w.lines.Err())
}

// It follows records and mounts, then the run-node that begins, and records again after its end.
func TestStatusWatch(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		root, file := filepath.Join(t.TempDir(), "root"), manifestFile(t, podNamed("a", "{name: memory, emptyDir: {medium: Memory}}"))
		read, out := io.Pipe()
		w := watchStatusOf(t, root, out, read)
		mustPodvol(t, exitOK, "mount", "-f", file, "--node", "here", "--root-dir", root)
		w.until("shop/a", "memory", "mounted")
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
		w.until("shop/a", "memory", "unmounted")
		n := runProcess(t, t.TempDir(), root)
		n.put("b.yaml", podNamed("b", "{name: bad, configMap: {name: missing}}"))
		w.until("shop/b", "bad", "failed") // which no record says
		n.put("b.yaml", podNamed("b", "{name: other, emptyDir: {medium: Memory}}"))
		w.until("shop/b", "other", "mounted")
		n.stop()
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
		w.until("shop/b", "other", "unmounted")
		if code := w.stop(); code != exitOK {
			t.Errorf("exit code %d", code)
		}
		mustPodvol(t, exitUsage, "status", "--watch", "-o", "yaml", "--root-dir", root)
	})
}

func TestStatusWatchAtATerminal(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		root, file := filepath.Join(t.TempDir(), "root"), manifestFile(t, podNamed("a", "{name: memory, emptyDir: {medium: Memory}}"))
		typist, program := terminal.Open(t)
		terminal.Resize(t, program, 80)
		w := watchStatusOf(t, root, program, typist)
		w.until("No volumes.")
		mustPodvol(t, exitOK, "mount", "-f", file, "--node", "here", "--root-dir", root)
		w.until("\x1b[2A", "POD") // over the line before
		w.until("shop/a", "memory", "mounted")
		if code := w.stop(); code != exitOK {
			t.Errorf("exit code %d", code)
		}
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
	})
}

// A node that hangs when it is asked first is one that may go on.
func TestStatusWatchOfANodeThatHangs(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		n := runProcess(t, t.TempDir(), root)
		n.put("a.yaml", podNamed("a", "{name: memory, emptyDir: {medium: Memory}}, {name: bad, configMap: {name: missing}}"))
		n.become(map[string]string{"memory": "mounted", "bad": "failed"})
		n.signal(syscall.SIGSTOP)
		typist, program := terminal.Open(t)
		terminal.Resize(t, program, 80)
		w := watchStatusOf(t, root, program, typist)
		w.until("shop/a", "memory", "mounted")
		w.until("known by the records: podvol run-node does not answer yet.")
		n.signal(syscall.SIGCONT)
		w.until("shop/a", "bad", "failed") // which no record says
		w.until("known by podvol run-node; Ctrl-C ends this.")
		if code := w.stop(); code != exitOK {
			t.Errorf("exit code %d", code)
		}
		n.stop()
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
	})
}
