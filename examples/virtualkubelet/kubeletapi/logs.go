package kubeletapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// logOptions are the options of a request for logs; zero values: everything.
type logOptions struct {
	follow, previous, timestamps bool
	tail                         int64 // lines of the file, of which a long line has several, as with the kubelet; -1: all
	most                         int64 // bytes; -1: all
	since                        time.Time
	stream                       string // stdout, stderr, or empty: both
}

// longest is a number of seconds that a [time.Duration] can hold, of about 290 years.
const longest = math.MaxInt64 / time.Second

func logOptionsOf(q url.Values) (o logOptions, err error) {
	o.tail, o.most = -1, -1
	number := func(name string, into *int64) {
		if text := q.Get(name); text != "" {
			n, bad := strconv.ParseInt(text, 10, 64)
			if bad == nil && n < 0 {
				bad = errors.New("it is negative")
			}
			if bad != nil {
				err = errors.Join(err, fmt.Errorf("%s=%q: %w", name, text, bad))
			}
			*into = n
		}
	}
	flag := func(name string) bool { is, _ := strconv.ParseBool(q.Get(name)); return is }
	o.follow, o.previous, o.timestamps = flag("follow"), flag("previous"), flag("timestamps")
	number("tailLines", &o.tail)
	number("limitBytes", &o.most)
	if q.Get("sinceSeconds") != "" {
		var seconds int64
		number("sinceSeconds", &seconds)
		o.since = time.Now().Add(-min(time.Duration(seconds), longest) * time.Second)
	}
	if text := q.Get("sinceTime"); text != "" {
		var bad error
		o.since, bad = time.Parse(time.RFC3339, text)
		err = errors.Join(err, bad)
	}
	if stream := q.Get("stream"); stream != "All" {
		o.stream = strings.ToLower(stream)
	}
	return o, err
}

// logs answers what a container has printed, and with follow, what it prints until it ends.
func (s *Server) logs(w http.ResponseWriter, r *http.Request) {
	o, err := logOptionsOf(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	pod, err := s.find(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	container := r.PathValue("container")
	attempt, err := attemptOf(pod, container, o.previous)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	l := &printed{writes: &s.writes, open: func() (*os.File, error) { return openLog(s.Runtime.LogFile(pod.UID, container, attempt)) }}
	l.file, err = l.open()
	if err != nil {
		http.Error(w, fmt.Sprintf("the log of container %s is not there: %v", container, err), http.StatusNotFound)
		return
	}
	defer l.close()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	out := &limited{to: w, left: o.most}
	l.ended = func() bool {
		now, err := s.find(r)
		if err != nil || now.UID != pod.UID {
			return true
		}
		status, err := statusOf(now, container)
		return err != nil || status.State.Running == nil || status.RestartCount != attempt
	}
	if err := l.copyTo(r.Context(), out, o); err != nil && r.Context().Err() == nil && !errors.Is(err, errEnough) {
		s.Log.Warn("a log is not sent whole", "pod", pod.Name, "container", container, "error", err)
	}
}

// attemptOf is the number of the run whose log is asked for.
func attemptOf(pod *v1.Pod, container string, previous bool) (int32, error) {
	status, err := statusOf(pod, container)
	switch {
	case err != nil:
		return 0, err
	case previous && status.LastTerminationState.Terminated == nil:
		return 0, fmt.Errorf("previous terminated container %q in pod %q not found", container, pod.Name)
	case previous && status.State.Waiting == nil:
		return status.RestartCount - 1, nil
	case status.State.Waiting != nil && status.LastTerminationState.Terminated == nil:
		return 0, fmt.Errorf("container %q in pod %q is waiting to start: %s", container, pod.Name, status.State.Waiting.Reason)
	}
	return status.RestartCount, nil
}

// copyTo copies a log in the format of CRI: each line has a time, a stream, F or P for
// a whole or a partial line, and the text. It keeps one line in memory, however many
// are asked for. A log that is rotated while it is followed is left for the next one.
func (l *printed) copyTo(ctx context.Context, to io.Writer, o logOptions) error {
	skip, err := beforeTail(ctx, l.file, o)
	if err != nil {
		return err
	}
	from := bufio.NewReader(l)
	begun, pending := true, ""
	for ctx.Err() == nil {
		part, err := from.ReadString('\n')
		pending += part
		if err == nil {
			line := show(pending, o, begun)
			begun = !isPartial(pending)
			pending = ""
			switch {
			case line == "":
			case skip > 0:
				skip--
			default:
				if _, err := io.WriteString(to, line); err != nil {
					return err
				}
			}
			continue
		}
		if !errors.Is(err, io.EOF) {
			return err
		}
		skip = 0 // what follows is new
		if !o.follow {
			return nil
		}
		if f, ok := to.(interface{ flush() }); ok {
			f.flush()
		}
		if err := l.more(ctx); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
	return context.Cause(ctx)
}

// beforeTail counts the lines that come before the last ones, if only these are asked
// for. The file is at its begin afterwards.
func beforeTail(ctx context.Context, file *os.File, o logOptions) (skip int64, err error) {
	if o.tail < 0 {
		return 0, nil
	}
	from, lines := bufio.NewReader(file), int64(0)
	for ctx.Err() == nil {
		line, err := from.ReadString('\n')
		if errors.Is(err, io.EOF) {
			_, err = file.Seek(0, io.SeekStart)
			return max(0, lines-o.tail), err
		}
		if err != nil {
			return 0, err
		}
		if show(line, o, true) != "" {
			lines++
		}
	}
	return 0, context.Cause(ctx)
}

func isPartial(line string) bool {
	words := strings.SplitN(line, " ", 4)
	return len(words) == 4 && words[2] == "P"
}

// show is a line as the caller wants it; empty: not at all.
func show(line string, o logOptions, begins bool) string {
	words := strings.SplitN(line, " ", 4)
	if len(words) != 4 || o.stream != "" && o.stream != words[1] {
		return ""
	}
	if !o.since.IsZero() {
		if at, err := time.Parse(time.RFC3339Nano, words[0]); err == nil && at.Before(o.since) {
			return ""
		}
	}
	text := words[3]
	if words[2] == "P" {
		text = strings.TrimSuffix(text, "\n")
	}
	if o.timestamps && begins {
		text = words[0] + " " + text
	}
	return text
}

// limited ends after so many bytes.
type limited struct {
	to   http.ResponseWriter
	left int64 // -1: no limit
}

var errEnough = errors.New("the limit of bytes is reached")

func (l *limited) Write(p []byte) (int, error) {
	if l.left >= 0 && int64(len(p)) > l.left {
		n, err := l.to.Write(p[:l.left])
		l.left -= int64(n)
		return n, errors.Join(err, errEnough)
	}
	n, err := l.to.Write(p)
	if l.left >= 0 {
		l.left -= int64(n)
	}
	return n, err
}

func (l *limited) flush() { _ = http.NewResponseController(l.to).Flush() }
