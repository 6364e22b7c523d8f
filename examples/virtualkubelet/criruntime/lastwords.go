package criruntime

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What a termination message may have, as with the kubelet.
const (
	mostMessage  = 4096
	mostLog      = 2048
	mostLogLines = 80
	// wordsWait is how long a file is waited for, which may be on a server that is dead.
	wordsWait = 10 * time.Second
)

// lastWords is the termination message of a run: its file's, or the end of its log where
// the container asks for that and has failed, or the runtime's.
func (c *run) lastWords(ctx context.Context, s *cri.ContainerStatus) string {
	if words := c.runtime.readEnd(ctx, c.messageFile(s), mostMessage, false); words != "" {
		return words
	}
	if c.spec.TerminationMessagePolicy == v1.TerminationMessageFallbackToLogsOnError && s.GetExitCode() != 0 {
		if words := c.lastLines(ctx); words != "" {
			return words
		}
	}
	return s.GetMessage()
}

// messageFile is where a run leaves its last words: the file that this package has made, or
// the one of a kubelet that has started the run. A mount from elsewhere is a volume, whose
// content is not the node's to read.
func (c *run) messageFile(s *cri.ContainerStatus) string {
	kubelets := filepath.Join(c.runtime.RootDir, "pods", string(c.pod), "containers")
	for _, m := range s.GetMounts() {
		if m.ContainerPath != messagePath(c.spec) {
			continue
		}
		if below, err := filepath.Rel(kubelets, m.HostPath); err == nil && filepath.IsLocal(below) {
			return filepath.Join(kubelets, below)
		}
	}
	return c.runtime.messageFile(c.pod, c.spec.Name, c.attempt)
}

// lastLines are the last lines that the container has printed.
func (c *run) lastLines(ctx context.Context) string {
	log := c.runtime.readEnd(ctx, filepath.Join(c.runtime.LogFile(c.pod, c.spec.Name, c.attempt)), 64*1024, true)
	var said []string
	for line := range strings.Lines(log) {
		if words := strings.SplitN(line, " ", 4); len(words) == 4 { // time, stream, whether it is whole, text
			text := words[3]
			if words[2] == "P" {
				text = strings.TrimSuffix(text, "\n")
			}
			said = append(said, text)
		}
	}
	if len(said) > mostLogLines {
		said = said[len(said)-mostLogLines:]
	}
	text := strings.Join(said, "")
	if len(text) > mostLog {
		text = text[len(text)-mostLog:]
		for len(text) > 0 && !utf8.RuneStart(text[0]) {
			text = text[1:] // the rest of a character
		}
	}
	return text
}

// readEnd reads the first or the last bytes of a file; of one that is not there or that does
// not answer, none.
func (r *Runtime) readEnd(ctx context.Context, path string, most int64, last bool) string {
	ctx, cancel := context.WithTimeout(ctx, wordsWait)
	defer cancel()
	var words string
	if r.reads.Do(ctx, path, func() error { words = endOfFile(path, most, last); return nil }) != nil {
		return "" // the read may still go on
	}
	return words
}

// endOfFile reads a regular file, but nothing else that has taken its place: a FIFO would
// block, and a link lead to a file that the container may not read.
func endOfFile(path string, most int64, last bool) string {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	cut := false
	if last && info.Size() > most {
		if _, err := file.Seek(-most, io.SeekEnd); err != nil {
			return ""
		}
		cut = true
	}
	content, _ := io.ReadAll(io.LimitReader(file, most))
	if cut { // the first line may be a part
		_, content, _ = bytes.Cut(content, []byte("\n"))
	}
	if int64(len(content)) == most {
		content = withoutRest(content)
	}
	return strings.ToValidUTF8(string(content), "\uFFFD")
}

// withoutRest drops a character at the end of which only a part was read.
func withoutRest(text []byte) []byte {
	for i := len(text) - 1; i >= max(0, len(text)-utf8.UTFMax); i-- {
		if !utf8.RuneStart(text[i]) {
			continue
		}
		if !utf8.FullRune(text[i:]) {
			return text[:i]
		}
		break
	}
	return text
}
