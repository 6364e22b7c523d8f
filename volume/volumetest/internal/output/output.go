// Package output collects the output of this process while a check runs.
package output

import (
	"bytes"
	"io"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// Output collects what the process says: by the default
// loggers, and by os.Stdout and os.Stderr as variables. The descriptors behind
// them stay, since the test's own report goes there.
type Output struct {
	// Restore ends it.
	Restore func()

	logs  lockedBuffer
	files []*os.File
}

// Capture collects until Restore is called.
func Capture(t testing.TB) *Output {
	t.Helper()
	o := &Output{}
	dir := t.TempDir()
	for _, name := range []string{"stdout", "stderr"} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		o.files = append(o.files, f)
	}
	logger, writer, flags := slog.Default(), log.Writer(), log.Flags()
	stdout, stderr := os.Stdout, os.Stderr
	o.Restore = func() {
		os.Stdout, os.Stderr = stdout, stderr
		slog.SetDefault(logger)
		// Last: SetDefault may direct the older package to the logger.
		log.SetOutput(writer)
		log.SetFlags(flags)
		for _, f := range o.files {
			f.Close()
		}
	}
	os.Stdout, os.Stderr = o.files[0], o.files[1]
	slog.SetDefault(slog.New(slog.NewTextHandler(&o.logs, &slog.HandlerOptions{Level: slog.LevelDebug - 4})))
	return o
}

// Take returns what was said since the last time.
func (o *Output) Take(t testing.TB) string {
	t.Helper()
	said := o.logs.take()
	for _, f := range o.files {
		data, err := os.ReadFile(f.Name())
		if err == nil {
			err = f.Truncate(0) // the next write is appended
		}
		if err != nil {
			t.Error(err)
		}
		said += string(data)
	}
	return said
}

// lockedBuffer is a buffer for several goroutines.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

var _ io.Writer = (*lockedBuffer)(nil)

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.buffer.Reset()
	return b.buffer.String()
}
