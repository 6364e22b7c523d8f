// Package driver finds FlexVolume drivers on a node and calls them.
//
// A driver is a program that answers each call by one JSON object on its standard output. It runs
// as this process's user, so that programs are only taken from directories that no other user can
// change.
package driver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/lazyregexp"
	"github.com/podvol/podvol/util/rootdir"
	"github.com/podvol/podvol/util/secretopt"
	"github.com/podvol/podvol/volume"
)

// Causes of failures, for [errors.Is].
const (
	// ErrNotInstalled says that there is no program of the driver's name.
	ErrNotInstalled volume.Cause = "the FlexVolume driver is not installed"
	// ErrNotTrusted says that the program, or its directory, can be changed by other users.
	ErrNotTrusted volume.Cause = "the FlexVolume driver can be changed by other users"
	// ErrNotSupported says that the driver has no such call.
	ErrNotSupported volume.Cause = "the FlexVolume driver does not support the call"
	// ErrFailed says that the driver has reported a failure, did not answer in time, or gave an
	// answer that is none.
	ErrFailed volume.Cause = "the FlexVolume driver has failed"
)

// Drivers are those of a directory. The fields are set before the first call. All methods are
// safe for concurrent use.
type Drivers struct {
	// Dir has a directory for each driver, such as "example.com~nfs" with the program "nfs".
	Dir string
	// Timeout bounds each call.
	Timeout time.Duration
	// Run runs programs.
	Run Runner

	calls blockingcall.Group[string]
	mu    sync.Mutex
	known map[string]known
}

// known is what the last program of a driver's name has said of itself.
type known struct {
	program      identity
	capabilities Capabilities
	unsupported  map[string]bool
}

// identity tells one program from another in its place.
type identity struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

var namePart = lazyregexp.New(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)

// maxParts are those of a name: the vendor's and the driver's.
const maxParts = 2

// CheckName refuses what cannot be the name of a driver, "driver" or "vendor/driver". Such a name
// leads to nothing but a driver's own directory.
func CheckName(name string) error {
	parts := strings.Split(name, "/")
	if len(parts) > maxParts {
		return volume.Invalid("flexVolume.driver", "%.128q must be the name of a driver, or of a vendor and a driver (example.com/nfs)", name)
	}
	for _, part := range parts {
		if !namePart().MatchString(part) {
			return volume.Invalid("flexVolume.driver", "%.128q must be the name of a driver, or of a vendor and a driver (example.com/nfs), of letters, digits, '-', '_' and '.'", name)
		}
	}
	return nil
}

// DirName is the name of a driver's directory, and NameOf the name of the driver of one.
func DirName(name string) string { return strings.Replace(name, "/", "~", 1) }

// NameOf returns the driver of a directory's name; ok is false if it is none's.
func NameOf(dirName string) (name string, ok bool) {
	name = strings.Replace(dirName, "~", "/", 1)
	return name, !strings.Contains(dirName, "/") && CheckName(name) == nil
}

// Program is the path of a driver's program below a directory of drivers.
func Program(dir, name string) string {
	return filepath.Join(dir, DirName(name), ProgramName(name))
}

// ProgramName is the name of a driver's program.
func ProgramName(name string) string { return name[strings.LastIndex(name, "/")+1:] }

// Driver is an installed driver.
type Driver struct {
	// Name is as in manifests.
	Name         string
	Capabilities Capabilities
	program      identity
	drivers      *Drivers
}

// Open finds a driver. The first time, and each time that its program is another one, the driver
// is asked for its capabilities (init). Its errors have done nothing to a volume; they match
// [ErrNotInstalled], [ErrNotTrusted] or [ErrFailed].
func (d *Drivers) Open(ctx context.Context, name string) (*Driver, error) {
	found, err := d.open(ctx, name)
	return found, volume.NothingDone(err)
}

func (d *Drivers) open(ctx context.Context, name string) (*Driver, error) {
	program, err := d.find(name)
	if err != nil {
		return nil, err
	}
	found := &Driver{Name: name, program: program, drivers: d}
	d.mu.Lock()
	k, ok := d.known[name]
	d.mu.Unlock()
	if ok && k.program == program {
		found.Capabilities = k.capabilities
		return found, nil
	}
	answer, err := found.Call(ctx, Call{Verb: "init"})
	if errors.Is(err, ErrNotSupported) {
		answer, err = Answer{Capabilities: DefaultCapabilities()}, nil
	}
	if err != nil {
		return nil, err
	}
	found.Capabilities = answer.Capabilities
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil {
		d.known = make(map[string]known)
	}
	d.known[name] = known{program: program, capabilities: answer.Capabilities, unsupported: make(map[string]bool)}
	return found, nil
}

// find looks for a driver's program.
func (d *Drivers) find(name string) (identity, error) {
	if err := CheckName(name); err != nil {
		return identity{}, err
	}
	if !filepath.IsAbs(d.Dir) {
		return identity{}, &volume.Failure{Cause: ErrNotInstalled, Subject: name, Next: "give Config.Dir as an absolute path",
			What: fmt.Sprintf("driver %s is not looked for in %q: programs are run from /, where that is another directory", name, d.Dir)}
	}
	program, err := lookUp(d.Dir, name)
	if err == nil {
		return program, nil
	}
	f := &volume.Failure{Cause: ErrFailed, Subject: name, What: fmt.Sprintf("driver %s cannot be looked up: %v", name, err), Err: err}
	if _, ok := errors.AsType[*rootdir.Error](err); ok {
		f.Cause = ErrNotTrusted
		f.What = fmt.Sprintf("driver %s is not run: %v", name, err)
	} else if errors.Is(err, fs.ErrNotExist) {
		f.Cause = ErrNotInstalled
		f.What = fmt.Sprintf("driver %s is not installed in %s", name, d.Dir)
		f.Next = fmt.Sprintf("put its program at %s", Program(d.Dir, name))
	}
	return identity{}, f
}

func lookUp(dir, name string) (identity, error) {
	all, err := rootdir.Open(dir)
	if err != nil {
		return identity{}, err
	}
	defer all.Close()
	own, err := rootdir.OpenDirAt(all, DirName(name))
	if err != nil {
		return identity{}, err
	}
	defer own.Close()
	if err := rootdir.CheckFileAt(own, ProgramName(name)); err != nil {
		return identity{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(own.Fd()), ProgramName(name), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return identity{}, &fs.PathError{Op: "stat", Path: Program(dir, name), Err: err}
	}
	if st.Mode&0o022 != 0 {
		return identity{}, &rootdir.Error{Path: Program(dir, name), Owner: int(st.Uid), Reason: fmt.Sprintf("can be changed by others (mode %#o)", st.Mode&0o7777),
			Advice: "check its content, and take that away (chmod go-w)"}
	}
	if st.Mode&0o111 == 0 {
		return identity{}, fmt.Errorf("%s is not executable: %w", Program(dir, name), unix.EACCES)
	}
	return identity{uint64(st.Dev), st.Ino, st.Size, st.Mtim, st.Ctim}, nil
}

// Call is one call of a driver.
type Call struct {
	// Verb is the call, and Args are its arguments.
	Verb string
	Args []string
	// Key is what the call is about, such as a directory. A call begins after the one before with
	// its key has ended, which may be stuck in the kernel.
	Key string
	// Secrets are kept out of errors.
	Secrets []string
}

// Call calls the driver, for at most the drivers' Timeout. Its errors are a *[volume.Failure] that
// matches [ErrNotSupported] or [ErrFailed], and wraps the end of ctx. They are marked by
// [volume.NothingDone] if the driver has not begun, or does not support the call.
func (d *Driver) Call(ctx context.Context, c Call) (Answer, error) {
	if d.lacks(c.Verb) {
		return Answer{}, d.notSupported(c)
	}
	limit := fmt.Errorf("it took longer than %v: %w", d.drivers.Timeout, context.DeadlineExceeded)
	ctx, cancel := context.WithTimeoutCause(ctx, d.drivers.Timeout, limit)
	defer cancel()
	path := Program(d.drivers.Dir, d.Name)
	var out Output
	err := d.drivers.calls.Do(ctx, path+" "+c.Key, func() (err error) {
		out, err = d.drivers.Run(ctx, path, append([]string{c.Verb}, c.Args...))
		return err
	})
	if abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err); ok {
		return Answer{}, d.unanswered(c, abandoned, !abandoned.Started)
	}
	exit, exited := errors.AsType[*exec.ExitError](err)
	if err != nil && (!exited || !exit.Exited()) {
		_, isPath := errors.AsType[*fs.PathError](err) // it was not started
		return Answer{}, d.unanswered(c, err, isPath)
	}
	answer, bad := Parse(out.Stdout)
	if bad == nil && err == nil {
		return answer, nil
	}
	if errors.Is(bad, errNotSupported) {
		d.note(c.Verb)
		return Answer{}, d.notSupported(c)
	}
	return Answer{}, d.failed(c, out, cmpErr(bad, err))
}

// cmpErr returns the first error, or else the second.
func cmpErr(first, second error) error {
	if first != nil {
		return first
	}
	return second
}

// unanswered is the error of a call that the driver has not ended.
func (d *Driver) unanswered(c Call, err error, nothing bool) error {
	f := &volume.Failure{Cause: ErrFailed, Subject: d.Name, What: fmt.Sprintf("driver %s did not answer %s: %v", d.Name, c.Verb, err), Err: err}
	if nothing {
		return volume.NothingDone(f)
	}
	return f
}

// failed is the error of a driver's answer. What an answer says in other words than a failure's
// message is shown, too.
func (d *Driver) failed(c Call, out Output, err error) error {
	f := &volume.Failure{Cause: ErrFailed, Subject: d.Name, Err: err}
	if said, ok := errors.AsType[failure](err); ok {
		text := string(said)
		if text == "" {
			text = oneLine(string(out.Stderr))
		}
		if text == "" {
			text = "it does not say why"
		}
		f.What = fmt.Sprintf("driver %s failed to %s: %s", d.Name, c.Verb, short(c.mask(text)))
		f.Err = nil // has the text with its secrets
		return f
	}
	f.What = fmt.Sprintf("driver %s answered %s in a way that is not FlexVolume's: %v", d.Name, c.Verb, err)
	if said := oneLine(string(out.Stdout) + " " + string(out.Stderr)); said != "" {
		f.What += ": " + short(c.mask(said))
	}
	f.Next = "see whether the driver is right for this node"
	return f
}

// mask takes the secrets out of a text that [oneLine] has made: as they are in one line, each of
// their lines, and both as JSON has them, since drivers show their arguments. The longest comes
// first, as one can be the beginning of another.
func (c Call) mask(text string) string {
	var forms []string
	for _, secret := range c.Secrets {
		for _, form := range append(strings.FieldsFunc(secret, unicode.IsControl), secret) {
			quoted, _ := json.Marshal(form) // a string
			forms = append(forms, oneLine(form), oneLine(string(quoted[1:len(quoted)-1])))
		}
	}
	slices.SortFunc(forms, func(a, b string) int { return len(b) - len(a) })
	const mark = "\x00" // not in the text, nor in a form
	for _, form := range forms {
		if form != "" {
			text = strings.ReplaceAll(text, form, mark)
		}
	}
	return strings.ReplaceAll(text, mark, secretopt.Masked)
}

func (d *Driver) notSupported(c Call) error {
	return volume.NothingDone(&volume.Failure{Cause: ErrNotSupported, Subject: d.Name, What: fmt.Sprintf("driver %s does not support %s", d.Name, c.Verb)})
}

// lacks reports whether the program has said that it does not support a call.
func (d *Driver) lacks(verb string) bool {
	d.drivers.mu.Lock()
	defer d.drivers.mu.Unlock()
	k := d.drivers.known[d.Name]
	return k.program == d.program && k.unsupported[verb]
}

func (d *Driver) note(verb string) {
	d.drivers.mu.Lock()
	defer d.drivers.mu.Unlock()
	if k := d.drivers.known[d.Name]; k.program == d.program && k.unsupported != nil {
		k.unsupported[verb] = true
	}
}

// Capabilities returns those of the driver of a name that was opened last; ok is false if none
// was. It does no I/O.
func (d *Drivers) Capabilities(name string) (c Capabilities, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	k, ok := d.known[name]
	return k.capabilities, ok
}
