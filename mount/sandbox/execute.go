package sandbox

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// DefaultPath is searched where the program's environment has no PATH.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// execute becomes the program; it returns only why not.
func (o *order) execute(parent *os.File, answers *json.Encoder) *Error {
	// Maybe only the sandbox's builder, or only the program's user, may search the
	// working directory.
	there, failure := o.changeDir()
	if failure != nil {
		return failure
	}
	if err := o.settle(); err != nil {
		return err
	}
	// A change of ids has taken the death signal back. A parent that died
	// meanwhile has closed its end of the pipe.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return failed("die with the parent", "", err)
	}
	if orphaned(parent) {
		os.Exit(killedCode)
	}
	if !there {
		there, failure = o.changeDir()
	}
	switch {
	case failure != nil:
		return failure
	case !there:
		return failed("change to the working directory", o.Dir, unix.EACCES)
	}
	if err := answers.Encode(answer{Executes: true}); err != nil {
		return failed("answer the parent", "", err)
	}
	return o.executeFirst()
}

// changeDir changes to the working directory, or says that this user may not.
func (o *order) changeDir() (there bool, failure *Error) {
	dir := o.Dir
	if dir == "" {
		dir = "/"
	}
	err := unix.Chdir(dir)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EACCES):
		return false, nil
	}
	failure = failed("change to the working directory", dir, err)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		failure.Advice = "make it in the program's root, or choose another (a container's is its workingDir)"
	}
	return false, failure
}

func orphaned(parent *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(parent.Fd())}}
	n, err := eintr.Get(func() (int, error) { return unix.Poll(fds, 0) })
	return err == nil && n > 0 && fds[0].Revents&unix.POLLHUP != 0
}

// executeFirst executes the first program of that name that can be.
func (o *order) executeFirst() *Error {
	name := o.Args[0]
	candidates := []string{name}
	if !strings.Contains(name, "/") {
		candidates = inPath(name, o.Env)
	}
	var denied error
	for _, candidate := range candidates {
		err := syscall.Exec(candidate, o.Args, o.Env)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
			if unix.Access(candidate, unix.F_OK) == nil {
				e := as(ErrProgram, "execute", candidate, err)
				e.Advice = "its interpreter or its dynamic loader is missing in this root"
				return e
			}
		case errors.Is(err, unix.EACCES):
			// A directory of the PATH that may not be searched has nothing to find,
			// as for shells.
			if name == candidate || unix.Access(candidate, unix.F_OK) == nil {
				denied = err
			}
		default:
			return as(ErrProgram, "execute", candidate, err)
		}
	}
	if denied != nil {
		return as(ErrProgram, "execute", name, denied)
	}
	return as(ErrProgramNotFound, "execute", name, unix.ENOENT)
}

func inPath(name string, env []string) []string {
	path := DefaultPath
	for _, variable := range env {
		if value, ok := strings.CutPrefix(variable, "PATH="); ok {
			path = value
		}
	}
	var candidates []string
	for _, dir := range filepath.SplitList(path) {
		candidates = append(candidates, filepath.Join(dir, name))
	}
	return candidates
}
