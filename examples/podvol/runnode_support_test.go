package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/util/testenv/noleak"
	"github.com/podvol/podvol/volume/nodeagent/manifestdir"
)

// nodeTest is a podvol run-node that runs, as its user sees it.
type nodeTest struct {
	t    *testing.T
	dir  string // of manifests
	root string
	rows chan rows.Row
	// passed are rows that came while another one was waited for.
	passed []rows.Row
	says   chan string
	missed []string // said while something else was waited for
	stop   func() (code int)
	kill   func() // of a process: SIGKILL
	signal func(os.Signal)
}

const patience = 2 * time.Minute

// runInProcess runs the command in this process.
func runInProcess(t *testing.T, dir, root string, args ...string) *nodeTest {
	t.Helper()
	outR, outW := io.Pipe()
	errR, errW := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan int, 1)
	go func() {
		code := run(ctx, runNodeArgs(dir, root, args), streams{in: strings.NewReader(""), out: outW, err: errW})
		outW.Close()
		errW.Close()
		ended <- code
	}()
	return follow(t, dir, root, outR, errR, cancel, func() int { return <-ended })
}

// runProcess runs the command as a process of its own, which SIGTERM stops.
func runProcess(t *testing.T, dir, root string, args ...string) *nodeTest {
	t.Helper()
	c := exec.Command("/proc/self/exe", runNodeArgs(dir, root, args)...)
	c.Env = append(os.Environ(), mainVar+"=1")
	out, outErr := c.StdoutPipe()
	errs, errsErr := c.StderrPipe()
	if err := errors.Join(outErr, errsErr, c.Start()); err != nil {
		t.Fatal(err)
	}
	n := follow(t, dir, root, out, errs, func() { _ = c.Process.Signal(syscall.SIGTERM) }, func() int {
		_ = c.Wait() // the code says it
		return c.ProcessState.ExitCode()
	})
	n.signal = func(s os.Signal) {
		if err := c.Process.Signal(s); err != nil {
			t.Error(err)
		}
	}
	n.kill = func() {
		_ = c.Process.Kill()
		n.stop()
	}
	return n
}

func runNodeArgs(dir, root string, args []string) []string {
	return append([]string{"run-node", "-f", dir, "--root-dir", root, "--node", "here", "-o", "json"}, args...)
}

func follow(t *testing.T, dir, root string, out, errs io.Reader, cancel func(), wait func() int) *nodeTest {
	n := &nodeTest{t: t, dir: dir, root: root, rows: make(chan rows.Row, 1000), says: make(chan string, 1000)}
	read := make(chan struct{}, 2)
	go func() {
		defer func() { close(n.rows); read <- struct{}{} }()
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var r rows.Row
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				t.Errorf("%v: %s", err, lines.Text())
			}
			n.rows <- r
		}
	}()
	go func() {
		defer func() { close(n.says); read <- struct{}{} }()
		for lines := bufio.NewScanner(errs); lines.Scan(); {
			n.says <- lines.Text()
		}
	}()
	code, stopped := 0, false
	n.stop = func() int {
		if !stopped {
			stopped = true
			cancel()
			<-read
			<-read
			code = wait()
		}
		return code
	}
	t.Cleanup(func() { n.stop() })
	return n
}

// row waits for the row of a volume in a state, and returns it.
func (n *nodeTest) row(volume, state string) rows.Row {
	n.t.Helper()
	late := time.After(patience)
	for {
		select {
		case r, ok := <-n.rows:
			if !ok {
				n.t.Fatalf("it ended before volume %s was %s: %s", volume, state, n.lastWords())
			}
			if r.Volume == volume && r.State == state {
				return r
			}
			n.passed = append(n.passed, r)
		case <-late:
			n.t.Fatalf("volume %s was not %s in %v; it said %v", volume, state, patience, n.heard())
		}
	}
}

// hears waits until standard error has a line with this text.
func (n *nodeTest) hears(text string) string {
	n.t.Helper()
	late := time.After(patience)
	for {
		select {
		case line, ok := <-n.says:
			if !ok {
				n.t.Fatalf("it ended and did not say %q: %s", text, n.lastWords())
			}
			if strings.Contains(line, text) {
				return line
			}
			n.missed = append(n.missed, line)
		case <-late:
			n.t.Fatalf("it did not say %q in %v", text, patience)
		}
	}
}

// lastWords are the code that it has ended with, and what it said that nobody
// has waited for.
func (n *nodeTest) lastWords() string {
	code := n.stop()
	return fmt.Sprintf("exit code %d; it said\n%s", code, strings.Join(append(n.missed, n.heard()...), "\n"))
}

// heard drains what was said and not listened to.
func (n *nodeTest) heard() (lines []string) {
	for {
		select {
		case line, ok := <-n.says:
			if !ok {
				return lines
			}
			lines = append(lines, line)
		default:
			return lines
		}
	}
}

// rest returns the rows that nobody has waited for, once the command has ended.
func (n *nodeTest) rest() (rows []rows.Row) {
	rows = n.passed
	for r := range n.rows {
		rows = append(rows, r)
	}
	return rows
}

// put writes a file as careful editors do: aside, then renamed.
func (n *nodeTest) put(name, text string) {
	n.t.Helper()
	putManifest(n.t, n.dir, name, text)
}

func putManifest(t *testing.T, dir, name, text string) {
	t.Helper()
	temp := filepath.Join(dir, "."+name+".new")
	if err := errors.Join(os.WriteFile(temp, []byte(text), 0o600), os.Rename(temp, filepath.Join(dir, name))); err != nil {
		t.Fatal(err)
	}
}

func (n *nodeTest) remove(name string) {
	n.t.Helper()
	if err := os.Remove(filepath.Join(n.dir, name)); err != nil {
		n.t.Fatal(err)
	}
}

// content waits until a file of a volume has this content.
func content(t *testing.T, path, want string) {
	t.Helper()
	w, err := manifestdir.NewWatch(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	late := time.After(patience)
	for {
		got, err := os.ReadFile(path)
		if err == nil && string(got) == want {
			return
		}
		select {
		case <-w.Changed():
		case <-late:
			t.Fatalf("%s has %q, %v; want %q", path, got, err, want)
		}
	}
}

// podNamed is a manifest of a pod with these volumes, in flow style; without
// containers it uses them all.
func podNamed(name, volumes string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", namespace: shop}\nspec:\n  volumes: [" + volumes + "]\n"
}

func configMapWith(value string) string {
	return strings.Replace(configMap, "{k: v}", "{k: "+value+"}", 1)
}

func leaks(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		if err := noleak.Find(before); err != nil {
			t.Error(err)
		}
	})
}

const disk = "{name: disk, emptyDir: {}}"

// afterGone is how long a file must be missing until run-node takes it for removed.
const afterGone = 500 * time.Millisecond
