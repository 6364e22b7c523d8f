package criruntime

import (
	"bytes"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What a termination message may have, as with the kubelet.
const (
	mostMessage  = 4096
	mostLog      = 2048
	mostLogLines = 80
)

// lastWords is the termination message of a run: its file's, or the end of its log where
// the container asks for that and has failed, or the runtime's.
func (c *run) lastWords(s *cri.ContainerStatus) string {
	if words := readEnd(c.messageFile(s), mostMessage, false); words != "" {
		return words
	}
	if c.spec.TerminationMessagePolicy == v1.TerminationMessageFallbackToLogsOnError && s.GetExitCode() != 0 {
		if words := c.lastLines(); words != "" {
			return words
		}
	}
	return s.GetMessage()
}

// messageFile is what a run has mounted for its last words, also one that a kubelet has
// started.
func (c *run) messageFile(s *cri.ContainerStatus) string {
	for _, m := range s.GetMounts() {
		if m.ContainerPath == messagePath(c.spec) {
			return m.HostPath
		}
	}
	return c.runtime.messageFile(c.pod, c.spec.Name, c.attempt)
}

// lastLines are the last lines that the container has printed.
func (c *run) lastLines() string {
	log := readEnd(c.runtime.LogFile(c.pod, c.spec.Name, c.attempt), 64*1024, true)
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

// readEnd reads the first or the last bytes of a file; of one that is not there, none.
func readEnd(path string, most int64, last bool) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	cut := false
	if info, err := file.Stat(); err == nil && last && info.Size() > most {
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
