package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/examples/podvol/internal/rehearsal"
	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/examples/podvol/internal/table"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/removetree"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/standalone"
)

// place is where volumes are mounted: below the root directory, or for a
// rehearsal below a temporary one that goes away again, with a mounter that
// only keeps books.
type place struct {
	rootDir string // where things happen
	shown   string // what the user is told
	fake    *fakemount.Mounter
	files   *rehearsedFiles
	order   []rows.Key // of the mounts of a rehearsal; nil: that of their times
}

// newPlace returns the place to mount at; it refuses a process that may not
// mount.
func newPlace(rootDir string, fake bool) (*place, error) {
	if !fake {
		return &place{rootDir: rootDir, shown: rootDir}, mayMount()
	}
	temp, err := os.MkdirTemp("", "podvol-fake-")
	if err != nil {
		return nil, err
	}
	return &place{rootDir: filepath.Join(temp, "root"), shown: rootDir, fake: fakemount.New(), files: &rehearsedFiles{}}, nil
}

// errMayNotMount says what mounting needs.
var errMayNotMount = errors.New("mounting and unmounting need the capability CAP_SYS_ADMIN: run as root, or in a user namespace (unshare -rm) with --root-dir; without it, podvol mount --fake shows what would be done, and podvol run -f FILE -- CMD shows the volumes to a command")

// mayMount looks at the process's effective capabilities.
func mayMount() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("asking for this process's capabilities: %w", err)
	}
	if data[0].Effective&(1<<unix.CAP_SYS_ADMIN) == 0 {
		return errMayNotMount
	}
	return nil
}

func (p *place) config(nodeName string, source objects.Source) standalone.NodeConfig {
	c := standalone.NodeConfig{RootDir: p.rootDir, NodeName: nodeName, Objects: source}
	if p.fake != nil {
		c.Mounter, c.HostFiles = p.fake, p.files
	}
	return c
}

// rename turns what happened below the temporary directory into what would
// happen below the root.
func (p *place) rename(text string) string {
	if p.fake == nil {
		return text
	}
	return strings.ReplaceAll(text, p.rootDir, p.shown)
}

// editRow makes the row of a rehearsal what it would be.
func (p *place) editRow(r *rows.Row) {
	if r.Fake = p.fake != nil; r.Fake {
		r.DurationSeconds = 0 // of what did not happen
	}
	r.Path, r.Error, r.Source = p.rename(r.Path), p.rename(r.Error), p.rename(r.Source)
}

// printCommands prints what a rehearsal would have run.
func (p *place) printCommands(w io.Writer) {
	if p.fake == nil {
		return
	}
	commands := p.files.commands()
	rehearsal.SortFiles(commands)
	calls := p.fake.Calls()
	if len(p.order) > 0 {
		rehearsal.SortMounts(calls, p.order)
	}
	for _, call := range calls {
		commands = append(commands, call.String())
	}
	table.Sentence(w, "Nothing was mounted. These commands would run, beside directories and files made below the root directory:")
	for _, c := range commands {
		plaintext.Line(w, "  %s", p.rename(c))
	}
	if len(commands) == 0 {
		fmt.Fprintln(w, "  none")
	}
}

// close removes the rehearsal's directory.
func (p *place) close() {
	if p.fake == nil {
		return
	}
	temp := filepath.Dir(p.rootDir)
	err := errors.Join(p.fake.Close(), removetree.Remove(context.Background(), filepath.Dir(temp), filepath.Base(temp)))
	if err != nil {
		fmt.Fprintln(os.Stderr, "podvol: the temporary directory stays behind:", err)
	}
}

// rehearsedFiles sees the host's files and only remembers what should be made.
type rehearsedFiles struct {
	mu   sync.Mutex
	made map[string]fs.FileMode
	log  []string
}

// Stat implements volume.HostFiles: what was made in the rehearsal exists.
func (r *rehearsedFiles) Stat(_ context.Context, path string) (fs.FileInfo, error) {
	r.mu.Lock()
	mode, made := r.made[path]
	r.mu.Unlock()
	if made {
		return rehearsedFile{filepath.Base(path), mode}, nil
	}
	return os.Stat(path)
}

// MakeDir implements volume.HostFiles.
func (r *rehearsedFiles) MakeDir(_ context.Context, path string, perm fs.FileMode) error {
	return r.make(path, perm|fs.ModeDir, "mkdir -p -m %04o %s", perm)
}

// MakeFile implements volume.HostFiles.
func (r *rehearsedFiles) MakeFile(_ context.Context, path string, perm fs.FileMode) error {
	return r.make(path, perm, "install -m %04o /dev/null %s", perm)
}

// SetOwnership implements volume.HostOwnership.
func (r *rehearsedFiles) SetOwnership(_ context.Context, path string, attributes volume.Attributes, args volume.MounterArgs) error {
	if args.FsGroup == nil || !attributes.Managed || attributes.ReadOnly {
		return nil
	}
	words := shellJoin([]string{path})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf("chgrp -R %d %s", *args.FsGroup, words), fmt.Sprintf("chmod -R ug+rwX %s", words),
		fmt.Sprintf("find %s -type d -exec chmod g+s {} +", words))
	return nil
}

// CheckDisk implements volume.HostDisks: a rehearsal may be held where the disks
// are not.
func (r *rehearsedFiles) CheckDisk(context.Context, *v1.PersistentVolume) error { return nil }

func (r *rehearsedFiles) make(path string, mode fs.FileMode, command string, perm fs.FileMode) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.made == nil {
		r.made = make(map[string]fs.FileMode)
	}
	r.made[path] = mode
	r.log = append(r.log, fmt.Sprintf(command, perm, shellJoin([]string{path})))
	return nil
}

func (r *rehearsedFiles) commands() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.log...)
}

// rehearsedFile is the FileInfo of what would have been made.
type rehearsedFile struct {
	name string
	mode fs.FileMode
}

func (f rehearsedFile) Name() string       { return f.name }
func (f rehearsedFile) Size() int64        { return 0 }
func (f rehearsedFile) Mode() fs.FileMode  { return f.mode }
func (f rehearsedFile) ModTime() time.Time { return time.Time{} }
func (f rehearsedFile) IsDir() bool        { return f.mode.IsDir() }
func (f rehearsedFile) Sys() any           { return nil }
