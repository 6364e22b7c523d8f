package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/util/testenv/calltrace"
	"github.com/podvol/podvol/volume/volumemanager"
)

// faultRun is what one run of a command came to.
type faultRun struct {
	calls  []faultCall
	failed string   // the first call that did
	left   []string // below the root directory in the end
}

// faultCall is a file operation of a command.
type faultCall struct {
	calltrace.Call
	at point
}

func (c faultCase) run(t *testing.T, base string, f fault) (r faultRun) {
	t.Helper()
	s := newFaultSite(t, base)
	defer func() {
		if !t.Failed() {
			if err := os.RemoveAll(s.dir); err != nil {
				t.Error(err)
			}
		}
	}()
	c.prepare(t, s)
	code, said := s.traced(t, c.hurry(s), r.at(s, f), c.endless)
	if c.going != nil {
		c.going(s)
	}
	judge := func(when string, err error) {
		if err != nil {
			t.Errorf("%s: %v\nit had said with exit code %d: %s", when, err, code, said)
		}
	}
	if strings.Contains(said, "panic:") || strings.Contains(said, "goroutine ") || code > exitUsage && code != c.failed || code < 0 {
		t.Errorf("it has crashed, or hung: exit code %d: %s", code, said)
	}
	judge("after the fault", s.kept(t))
	if c.never {
		if code == exitOK {
			t.Errorf("it did what it was to refuse: %s", said)
		}
		judge("after the fault", s.mounted(t))
	} else {
		if code == exitOK && (!c.endless || f.at.n == 0) {
			promised := c.done
			if c.zero != nil {
				promised = c.zero
			}
			judge("after exit code 0", promised(t, s))
		}
		judge("run again without faults", c.again(t, s))
	}
	judge("run again without faults", s.kept(t))
	s.end(t, judge)
	r.left = s.left(t)
	return r
}

// at lets operations fail, and notes them all. A point that does not come in a run is
// no failure.
func (r *faultRun) at(s *faultSite, f fault) func(calltrace.Call) calltrace.Action {
	seen := make(map[string]int)
	failing := false
	return func(c calltrace.Call) calltrace.Action {
		if c.Path != "" && !calltrace.Below(c.Path, s.dir) {
			return calltrace.Action{}
		}
		class := s.class(c)
		seen[class]++
		at := point{class, seen[class]}
		r.calls = append(r.calls, faultCall{c, at})
		fails := at == f.at
		failing = failing || fails && f.forever
		if !fails && !failing || !slices.Contains(faultsOf(c), f.err) {
			return calltrace.Action{}
		}
		if r.failed == "" {
			r.failed = c.Text
		}
		return calltrace.Action{Err: f.err, Short: f.err == 0}
	}
}

// class is a call without what differs from run to run.
func (s *faultSite) class(c calltrace.Call) string {
	paths := strings.NewReplacer(s.dir+"/", "", s.dir, ".").Replace(strings.TrimPrefix(c.Text, c.Name+" "))
	return chance.ReplaceAllString(c.Name+" "+paths, "ID")
}

// hurry is the command as it is run with faults.
func (c faultCase) hurry(s *faultSite) []string {
	args := c.args(s)
	at := slices.Index(args, "--")
	if at < 0 {
		at = len(args)
	}
	return slices.Insert(args, at, append(c.hurried, "--root-dir", s.root)...)
}

// traced runs a command as a process of its own. One that is endless is stopped once
// it has mounted all, says that something has failed, or says nothing for long.
func (s *faultSite) traced(t *testing.T, args []string, at func(calltrace.Call) calltrace.Action, endless bool) (code int, said string) {
	t.Helper()
	output, err := os.CreateTemp(t.TempDir(), "output-")
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	p := calltrace.Process{Args: args, Env: []string{mainVar + "=1"}, Stdout: output, Stderr: output, Limit: 10 * time.Minute, At: at}
	if endless {
		stopped := make(chan struct{})
		stop := sync.OnceFunc(func() { close(stopped) })
		late := time.AfterFunc(time.Minute, stop)
		defer late.Stop()
		p.Stop = stopped
		p.At = func(c calltrace.Call) calltrace.Action {
			if isOver(output.Name()) {
				stop()
			}
			return at(c)
		}
	}
	status, _, err := p.Run()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(output.Name())
	if err != nil {
		t.Fatal(err)
	}
	return status.ExitStatus(), fmt.Sprintf("%s\n%s", strings.Join(args, " "), text)
}

// isOver reports whether run-node has printed that five volumes are mounted, or that
// something has failed: a volume, or else by a line that names an error.
func isOver(path string) bool {
	said, err := os.ReadFile(path)
	if err != nil {
		return true
	}
	mounted := make(map[string]bool)
	for line := range bytes.Lines(said) {
		var r rows.Row
		if json.Unmarshal(line, &r) != nil {
			if bytes.Contains(line, []byte("rror")) {
				return true
			}
			continue
		}
		if r.State == string(volumemanager.StateFailed) {
			return true
		}
		mounted[r.Volume] = r.State == string(volumemanager.StateMounted)
	}
	maps.DeleteFunc(mounted, func(_ string, is bool) bool { return !is })
	return len(mounted) >= 5
}
