package vmtest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
)

// The ways by which a machine speaks to the host. guest/start knows the
// positions of the last three.
const (
	portConsole = "console"
	portOut     = "out"
	portErr     = "err"
	portResult  = "result"
)

func portNames() []string { return []string{portConsole, portOut, portErr, portResult} }

// result is what the machine has said through its result port, line by line:
//
//	up                       the command starts
//	report <line>            a line that the command left in its report
//	exit <code> <out> <err>  the command has ended, after that many bytes of output
//	failed <what>            the machine could not start the command
type result struct {
	up, ended bool
	code      int
	out, err  int64
	failure   string
	reports   []string
	copyErr   error
}

func (r *result) line(line string) {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "up":
		r.up = true
	case "report":
		r.reports = append(r.reports, rest)
	case "failed":
		r.failure = rest
	case "exit":
		n, err := fmt.Sscan(rest, &r.code, &r.out, &r.err)
		r.ended = n == 3 && err == nil
	}
}

// ports are the pipes between QEMU and this process.
type ports struct {
	local, remote []*os.File // in the order of portNames
	writers       []io.Writer
	onUp          func() bool // the command starts
	onEnd         func()      // nothing more is to come
	out, err      *arrivals
}

func openPorts(c Command, console *tail, alsoTo io.Writer) (*ports, error) {
	var consoleTo io.Writer = console
	if alsoTo != nil {
		consoleTo = io.MultiWriter(console, alsoTo)
	}
	if c.oneOutput() {
		c.Stderr = nil // the port is not used, and its end is no business of the writer's
	}
	p := &ports{writers: []io.Writer{consoleTo, c.Stdout, c.Stderr}, out: newArrivals(), err: newArrivals()}
	for range portNames() {
		r, w, err := os.Pipe()
		if err != nil {
			p.abandon()
			return nil, err
		}
		p.local, p.remote = append(p.local, r), append(p.remote, w)
	}
	return p, nil
}

func (p *ports) abandon() {
	if p.onUp != nil {
		p.onUp()
	}
	for _, f := range append(p.local, p.remote...) {
		f.Close()
	}
}

// copy passes on what comes, until QEMU has ended; outcome then waits for the
// last of it.
func (p *ports) copy() (outcome func() *result) {
	for _, f := range p.remote {
		f.Close()
	}
	var r result
	var wg sync.WaitGroup
	errs := make([]error, len(p.writers))
	counts := []*arrivals{newArrivals(), p.out, p.err}
	for i, w := range p.writers {
		wg.Go(func() { errs[i] = drain(w, p.local[i], counts[i]) })
	}
	wg.Go(func() { p.follow(&r, p.local[len(p.writers)]) })
	return func() *result {
		wg.Wait()
		for _, f := range p.local {
			f.Close()
		}
		r.copyErr = errors.Join(errs...)
		return &r
	}
}

// follow reads the result port.
func (p *ports) follow(r *result, from io.Reader) {
	defer p.onUp()
	for lines := bufio.NewScanner(from); lines.Scan(); {
		r.line(lines.Text())
		if r.up {
			p.onUp()
		}
		if r.ended {
			p.out.await(r.out)
			p.err.await(r.err)
		}
		if r.ended || r.failure != "" {
			p.onEnd()
		}
	}
}

// drain copies to w, if it is not nil, and reads on if w fails: the machine
// would else wait for its reader.
func drain(w io.Writer, from io.Reader, count *arrivals) error {
	defer count.end()
	if w == nil {
		w = io.Discard
	}
	counted := io.TeeReader(from, count)
	_, err := io.Copy(w, counted)
	if err != nil {
		_, _ = io.Copy(io.Discard, counted)
	}
	return err
}

// arrivals counts the bytes that have come through a port. Each port comes at
// its own pace: the result may be here before the output.
type arrivals struct {
	mu      sync.Mutex
	changed *sync.Cond
	bytes   int64
	ended   bool
}

func newArrivals() *arrivals {
	a := &arrivals{}
	a.changed = sync.NewCond(&a.mu)
	return a
}

func (a *arrivals) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.bytes += int64(len(b))
	a.changed.Broadcast()
	return len(b), nil
}

func (a *arrivals) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	a.changed.Broadcast()
}

// await waits until so many bytes, or all that will ever come, are here.
func (a *arrivals) await(bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.bytes < bytes && !a.ended {
		a.changed.Wait()
	}
}

// tail keeps the end of what is written to it. It may be used by several
// goroutines.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

// tailSize is enough for a panic's registers and stack.
const tailSize = 8 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, b...)
	if extra := len(t.kept) - tailSize; extra > 0 {
		t.kept = append(t.kept[:0], t.kept[extra:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ReplaceAll(string(t.kept), "\r", "")
}
