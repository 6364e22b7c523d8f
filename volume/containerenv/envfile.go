package containerenv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/podvol/podvol/volume"
)

const (
	emptyDirPlugin = "kubernetes.io/empty-dir"
	// maxEnvFile bounds a file that a container writes, and so each value in it, far
	// below what the kernel takes for one variable.
	maxEnvFile = 64 << 10
)

// file looks a variable up in a file of one of the pod's emptyDirs (KEP-3721). What the
// pod's containers have put there is a stranger's: links stay inside the volume, and
// nothing but a regular file is opened.
func (r *resolver) file(ctx context.Context, s *v1.FileKeySelector) (value string, set bool, err error) {
	if err := r.checkFile(s); err != nil {
		return "", false, err
	}
	where := fmt.Sprintf("file %q of volume %q", s.Path, s.VolumeName)
	host := &volume.Host{RootDir: r.from.RootDir}
	dir := host.GetPodVolumeDir(r.pod.UID, emptyDirPlugin, s.VolumeName)
	type found struct {
		value string
		set   bool
	}
	result := make(chan found, 1)
	err = r.reads.Do(ctx, dir, func() error {
		value, set, err := readEnvFile(dir, s.Path, s.Key)
		result <- found{value, set}
		return err
	})
	if err == nil {
		f := <-result
		value, set = f.value, f.set
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", false, unlessOptional(&MissingError{File: where}, s.Optional)
	case err != nil:
		return "", false, fmt.Errorf("%s: %w", where, err)
	case !set:
		return "", false, unlessOptional(&MissingError{File: where, Key: s.Key}, s.Optional)
	}
	return value, true, nil
}

// checkFile refuses what the API would.
func (r *resolver) checkFile(s *v1.FileKeySelector) error {
	const field = "valueFrom.fileKeyRef"
	if faults := validation.IsRelaxedEnvVarName(s.Key); len(faults) > 0 {
		return volume.Invalid(field+".key", "%s", strings.Join(faults, "; "))
	}
	if !filepath.IsLocal(s.Path) || slices.Contains(strings.Split(s.Path, "/"), "..") {
		return volume.Invalid(field+".path", "%q must be a path inside the volume, without \"..\"", s.Path)
	}
	for i := range r.pod.Spec.Volumes {
		v := &r.pod.Spec.Volumes[i]
		switch {
		case v.Name != s.VolumeName:
		case v.EmptyDir == nil:
			return volume.Invalid(field+".volumeName", "volume %q must be an emptyDir", s.VolumeName)
		case r.from.RootDir == "":
			return ErrEnvFile
		default:
			return volume.CheckPathSegment("volume name", v.Name)
		}
	}
	return volume.Invalid(field+".volumeName", "the pod has no volume %q", s.VolumeName)
}

// errNoFile says that opening would act on a device, or wait at a FIFO.
var errNoFile = errors.New("it is no regular file")

// readEnvFile may block for as long as a file system does that a container has mounted there.
func readEnvFile(dir, path, key string) (value string, set bool, err error) {
	file, err := openEnvFile(dir, path)
	if err != nil {
		return "", false, err
	}
	defer file.Close()
	return parseEnvFile(file, key)
}

func openEnvFile(dir, path string) (*os.File, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	info, err := root.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errNoFile
	}
	file, err := root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err = file.Stat(); err == nil && !info.Mode().IsRegular() { // changed since
		err = errNoFile
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// ErrEnvFileFormat says that a file is none of an environment. The error is a
// [volume.Failure] that names the line, and shows nothing of the file.
const ErrEnvFileFormat volume.Cause = "the file is none of an environment"

func faultOf(line int, reason string) error {
	return &volume.Failure{Cause: ErrEnvFileFormat, Subject: fmt.Sprintf("line %d", line), What: fmt.Sprintf("line %d %s", line, reason)}
}

// parseEnvFile returns the first value of a key in a file of lines KEY='value', as the
// kubelet reads it: the value is what is between the quotes, lines included, without
// escapes; after them only a comment may follow; blank lines and comments are passed
// over; a blank after the equals sign makes the value empty. What follows the value is
// not looked at.
func parseEnvFile(from io.Reader, key string) (value string, found bool, err error) {
	p := envParser{lines: bufio.NewScanner(&limited{from: from, left: maxEnvFile})}
	p.lines.Buffer(nil, maxEnvFile+2)
	for p.next() {
		name, value, err := p.assignment()
		if err != nil {
			return "", false, err
		}
		if name == key {
			return value, true, nil
		}
	}
	return "", false, p.lines.Err()
}

// limited fails where a file goes on beyond its limit.
type limited struct {
	from io.Reader
	left int
}

var errEnvFileTooLarge = fmt.Errorf("it has more than %d bytes", maxEnvFile)

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.from.Read(p[:min(len(p), l.left+1)])
	if n > l.left {
		return l.left, errEnvFileTooLarge
	}
	l.left -= n
	return n, err
}

type envParser struct {
	lines  *bufio.Scanner
	number int
	line   string
}

// read goes to the next line.
func (p *envParser) read() bool {
	if !p.lines.Scan() {
		return false
	}
	p.number++
	p.line = p.lines.Text()
	return true
}

// next goes to the next line that has a variable.
func (p *envParser) next() bool {
	for p.read() {
		p.line = strings.TrimLeft(p.line, " \t")
		if p.line != "" && p.line[0] != '#' {
			return true
		}
	}
	return false
}

func (p *envParser) fault(reason string) error { return faultOf(p.number, reason) }

// assignment reads a variable that begins on this line.
func (p *envParser) assignment() (name, value string, err error) {
	name, rest, ok := strings.Cut(p.line, "=")
	switch {
	case !ok:
		return "", "", p.fault("has no equals sign; write KEY='value'")
	case strings.Trim(name, " \t") == "":
		return "", "", p.fault("has no key before the equals sign")
	case name != strings.TrimRight(name, " \t"):
		return "", "", p.fault("has a blank before the equals sign")
	case strings.TrimLeft(rest, " \t") != rest:
		return name, "", nil
	case !strings.HasPrefix(rest, "'"):
		return "", "", p.fault("has a value without single quotes; write KEY='value'")
	}
	value, err = p.quoted(rest[1:])
	return name, value, err
}

// quoted reads on until the closing quote.
func (p *envParser) quoted(rest string) (string, error) {
	begun := p.number
	var value strings.Builder
	for {
		part, after, closed := strings.Cut(rest, "'")
		value.WriteString(part)
		if closed {
			if after = strings.TrimLeft(after, " \t"); after != "" && after[0] != '#' {
				return "", p.fault("goes on after the closing quote")
			}
			return value.String(), nil
		}
		value.WriteByte('\n')
		if !p.read() {
			if err := p.lines.Err(); err != nil {
				return "", err
			}
			return "", faultOf(begun, "opens a quote that is not closed")
		}
		rest = p.line
	}
}
