package hostns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/ladder"
)

// ErrChildEnded says that the process in the host's namespaces has ended, by itself or since the
// mounter was closed. Whether a call that was under way has taken effect is not known.
var ErrChildEnded = errors.New("the process that mounts in the host's namespaces has ended")

// cancelPatience is how long an answer may take after the caller's context has ended. The child
// answers at once then, unless it is stopped or starved.
const cancelPatience = 5 * time.Second

// session is one child, as the agent has it.
type session struct {
	wire      *wire
	cmd       *exec.Cmd
	log       *slog.Logger
	namespace string
	gone      chan struct{} // closed when no answer comes any more

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]func(answer)
}

// begin starts a child and has it ready.
func begin(ctx context.Context, c Config) (*session, error) {
	cmd, socket, err := startChild(c.namespaces(), os.Stderr)
	if err != nil {
		return nil, err
	}
	w, err := newWire(socket)
	if err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	s := &session{wire: w, cmd: cmd, log: c.logger(), gone: make(chan struct{}), waiting: make(map[uint64]func(answer))}
	go s.receive()
	a, err := s.ask(ctx, question{Op: opHello, Settings: c.settings()}, nil)
	if err == nil && a.Namespace == "" {
		err = a.Failed.received(ctx)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	s.namespace = a.Namespace
	if err := a.Failed.received(ctx); err != nil {
		s.log.WarnContext(ctx, "mount helpers' daemons may end with this container", "error", err)
	}
	if c.hasOwnProcesses() {
		s.log.WarnContext(ctx, "mount helpers' daemons end with this container: its pod lacks hostPID: true")
	}
	return s, nil
}

// receive hands out answers until the child ends.
func (s *session) receive() {
	defer func() {
		close(s.gone)
		s.wire.conn.Close()
		_ = s.cmd.Wait() // how it ended is on standard error
	}()
	for {
		var a answer
		file, err := s.wire.receive(&a)
		if err != nil {
			return
		}
		if file != nil {
			file.Close() // it sends none
		}
		if a.Log != nil {
			s.relog(a.Log)
			continue
		}
		s.mu.Lock()
		take := s.waiting[a.ID]
		if !a.Changed {
			delete(s.waiting, a.ID)
		}
		s.mu.Unlock()
		if take != nil {
			take(a)
		}
	}
}

// relog writes a record of the child's to the agent's log.
func (s *session) relog(record []byte) {
	var attrs map[string]any
	var level slog.Level
	if json.Unmarshal(record, &attrs) != nil {
		return
	}
	word, _ := attrs[slog.LevelKey].(string)
	text, _ := attrs[slog.MessageKey].(string)
	if level.UnmarshalText([]byte(word)) != nil || !s.log.Enabled(context.Background(), level) {
		return
	}
	var rest []slog.Attr
	for key, value := range attrs {
		if key != slog.LevelKey && key != slog.MessageKey && key != slog.TimeKey {
			rest = append(rest, slog.Any(key, value))
		}
	}
	s.log.LogAttrs(context.Background(), level, text, rest...)
}

// close ends the child: it ends when the other end is closed.
func (s *session) close() {
	s.wire.conn.Close()
	<-s.gone
}

// post sends a question whose answers go to take, which must not block.
func (s *session) post(q question, file *os.File, take func(answer)) (id uint64, err error) {
	s.mu.Lock()
	s.next++
	q.ID = s.next
	s.waiting[q.ID] = take
	s.mu.Unlock()
	if err := s.wire.send(q, file); err != nil {
		s.forget(q.ID)
		return 0, fmt.Errorf("%w: %w", ErrChildEnded, err)
	}
	return q.ID, nil
}

func (s *session) forget(id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, id)
}

// ask sends a question and waits for its answer. If ctx ends first, the child is told, and
// its answer to that counts.
func (s *session) ask(ctx context.Context, q question, file *os.File) (answer, error) {
	if deadline, ok := ctx.Deadline(); ok {
		q.Left = max(time.Until(deadline), 1)
	}
	answers := make(chan answer, 1)
	id, err := s.post(q, file, func(a answer) { answers <- a })
	if err != nil {
		return answer{}, err
	}
	select {
	case a := <-answers:
		return a, nil
	case <-s.gone:
	case <-ctx.Done():
		return s.giveUp(ctx, id, answers)
	}
	return lastOf(answers)
}

// giveUp cancels a call, and waits a while for what has become of it.
func (s *session) giveUp(ctx context.Context, id uint64, answers <-chan answer) (answer, error) {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) { // which the child knows
		_ = s.wire.send(question{ID: id, Op: opCancel}, nil) // a child that has ended is seen by gone
	}
	patience := time.NewTimer(cancelPatience)
	defer patience.Stop()
	select {
	case a := <-answers:
		return a, nil
	case <-s.gone:
		return lastOf(answers)
	case <-patience.C:
		s.forget(id)
		return answer{}, ladder.Ended(ctx)
	}
}

// lastOf is the answer that came just before the child's end, if one did.
func lastOf(answers <-chan answer) (answer, error) {
	select {
	case a := <-answers:
		return a, nil
	default:
		return answer{}, ErrChildEnded
	}
}

// uncertain makes the error of a call of which no answer came.
func uncertain(err error, e mount.Error) error {
	explained := mount.Explain(err, e)
	if own, ok := errors.AsType[*mount.Error](explained); ok {
		own.Uncertain = true
	}
	return explained
}

// hasOwnProcesses reports whether this process is not in the host's PID namespace, as
// far as that can be told.
func (c Config) hasOwnProcesses() bool {
	ours, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return false
	}
	theirs, err := os.Readlink(strings.TrimSuffix(c.namespaces(), "/") + "/pid")
	return err == nil && ours != theirs
}
