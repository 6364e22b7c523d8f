package vmtest

import (
	"bufio"
	"errors"
	"io"
	"os"
	"strconv"
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
//	up             the command starts
//	report <line>  a line that the command left in its report
//	exit <code>    the command has ended and its output is out
//	failed <what>  the machine could not start the command
type result struct {
	up, ended bool
	code      int
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
		code, err := strconv.Atoi(rest)
		r.code, r.ended = code, err == nil
	}
}

// ports are the pipes between QEMU and this process.
type ports struct {
	local, remote []*os.File // in the order of portNames
	writers       []io.Writer
	onUp          func() bool // the command starts
	onEnd         func()      // nothing more is to come
}

func openPorts(c Command, console *tail, alsoTo io.Writer) (*ports, error) {
	var consoleTo io.Writer = console
	if alsoTo != nil {
		consoleTo = io.MultiWriter(console, alsoTo)
	}
	p := &ports{writers: []io.Writer{consoleTo, c.Stdout, c.Stderr}}
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
	for i, w := range p.writers {
		wg.Go(func() { errs[i] = drain(w, p.local[i]) })
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
		if r.ended || r.failure != "" {
			p.onEnd()
		}
	}
}

// drain copies to w, if it is not nil, and reads on if w fails: the machine
// would else wait for its reader.
func drain(w io.Writer, from io.Reader) error {
	if w == nil {
		w = io.Discard
	}
	_, err := io.Copy(w, from)
	if err != nil {
		_, _ = io.Copy(io.Discard, from)
	}
	return err
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
