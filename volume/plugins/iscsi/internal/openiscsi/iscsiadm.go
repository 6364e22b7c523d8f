package openiscsi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/filelock"
	"github.com/podvol/podvol/util/program"
	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume"
)

// Exit codes of iscsiadm(8).
const (
	codeNoSession     = 2
	codeTransport     = 4
	codeLogin         = 5
	codeTimeout       = 8
	codePDUTimeout    = 11
	codeNoTransport   = 12
	codeSessionExists = 15
	codeDaemon        = 18
	codeFatalLogin    = 19
	codeNoDaemon      = 20
	codeNoRecords     = 21
	codeNoHost        = 23
	codeAuth          = 24
)

// exitError is a failed call of iscsiadm.
type exitError struct {
	volume.Failure
	code int
}

// run runs a program in a process group of its own, which is killed when ctx ends.
func (c Config) run(ctx context.Context, name string, args ...string) (string, int, error) {
	path, err := program.Find(c.ToolDirs, name)
	if err != nil {
		return "", -1, err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && ctx.Err() == nil && exit.Exited() {
		return out.String(), exit.ExitCode(), nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return out.String(), 0, err
}

// databaseTimeout is how long open-iscsi's database may take.
const databaseTimeout = 30 * time.Second

// tool runs a program. A call that changes open-iscsi's database goes on when ctx ends: killed,
// it would leave the database's lock, which every later call waits for.
func (i *Initiator) tool(ctx context.Context, program string, args ...string) (string, int, error) {
	if ctx.Err() == nil && slices.Contains(args, "-o") {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), databaseTimeout)
		defer cancel()
	}
	return i.config.Run(ctx, program, args...)
}

// iscsiadm calls iscsiadm about a target. No argument is secret.
func (i *Initiator) iscsiadm(ctx context.Context, iqn string, p Portal, args ...string) error {
	output, code, err := i.tool(ctx, "iscsiadm", args...)
	if err == nil && code == 0 {
		return nil
	}
	f := volume.Failure{Subject: iqn, Err: err}
	if err != nil {
		f.What = fmt.Sprintf("iscsiadm %s: %v", strings.Join(args, " "), err)
		if errors.Is(err, exec.ErrNotFound) {
			f.Cause, f.Next = ErrNoInitiator, "install open-iscsi on the node, and start iscsid"
		}
		return &f
	}
	f.What = fmt.Sprintf("target %s at %s: iscsiadm ended with %d: %s", iqn, p, code, lastLines(output))
	switch code {
	case codeAuth:
		f.Cause, f.Next = ErrLogin, "check chapAuthSession and the user names and passwords in the volume's secret"
	case codeLogin, codeFatalLogin:
		f.Cause, f.Next = ErrLogin, "check iqn and initiatorName, and whether the target lets this node in"
	case codeTransport, codeTimeout, codePDUTimeout, codeNoHost:
		f.Cause, f.Next = ErrUnreachable, "check targetPortal and the network between this node and the target"
	case codeDaemon, codeNoDaemon, codeNoTransport:
		f.Cause, f.Next = ErrNoInitiator, "start iscsid on the node, and load the kernel's module iscsi_tcp"
	case codeNoRecords, codeNoSession:
		f.Cause = ErrUnreachable
	}
	return &exitError{f, code}
}

// Unwrap keeps the failure findable by its type.
func (e *exitError) Unwrap() error { return &e.Failure }

// maxOutput is how much of a program's output an error has, in bytes.
const maxOutput = 500

// lastLines makes the end of an output one line.
func lastLines(output string) string {
	line := strings.Join(strings.Fields(output), " ")
	return line[max(0, len(line)-maxOutput):]
}

// makeInterface makes the interface of a volume that names the initiator.
func (i *Initiator) makeInterface(ctx context.Context, face Interface) error {
	if face.InitiatorName == "" {
		return nil
	}
	base, code, err := i.tool(ctx, "iscsiadm", "-m", "iface", "-I", face.Base, "-o", "show")
	if err != nil || code != 0 {
		return i.interfaceFailed(face.Base, "there is no such interface of open-iscsi", code, err)
	}
	call := func(args ...string) error {
		output, code, err := i.tool(ctx, "iscsiadm", append([]string{"-m", "iface", "-I", face.Name}, args...)...)
		if err != nil || code != 0 && code != codeSessionExists {
			return i.interfaceFailed(face.Name, "open-iscsi cannot be given this interface: "+lastLines(output), code, err)
		}
		return nil
	}
	if err := call("-o", "new"); err != nil {
		return err
	}
	settings := append(settingsOf(base), [2]string{"iface.initiatorname", face.InitiatorName})
	for _, s := range settings {
		if err := call("-o", "update", "-n", s[0], "-v", s[1]); err != nil {
			return err
		}
	}
	return nil
}

func (i *Initiator) interfaceFailed(name, why string, code int, err error) error {
	f := &volume.Failure{Cause: ErrNoInitiator, Subject: name, Err: err, What: fmt.Sprintf("interface %s: %s (%d)", name, why, code),
		Next: "see iscsiadm -m iface on the node"}
	if err != nil {
		f.What = fmt.Sprintf("interface %s: %v", name, err)
	}
	return f
}

// settingsOf reads the settings of an interface that another one is to have, too.
func settingsOf(shown string) (settings [][2]string) {
	for line := range strings.Lines(shown) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), " = ")
		if ok && strings.HasPrefix(key, "iface.") && key != "iface.iscsi_ifacename" && key != "iface.initiatorname" && value != "<empty>" {
			settings = append(settings, [2]string{key, value})
		}
	}
	return settings
}

// removeInterface removes what makeInterface has made, unless a session uses it.
func (i *Initiator) removeInterface(ctx context.Context, face Interface) error {
	if face.InitiatorName == "" {
		return nil
	}
	ids, err := entries(i.class("iscsi_session"))
	if err != nil {
		return err
	}
	for _, id := range ids {
		if used, err := attribute(i.class("iscsi_session"), id, "ifacename"); err != nil || used == face.Name {
			return err
		}
	}
	output, code, err := i.tool(ctx, "iscsiadm", "-m", "iface", "-I", face.Name, "-o", "delete")
	if errors.Is(err, exec.ErrNotFound) {
		return nil
	}
	if err != nil || code != 0 && code != codeNoRecords {
		return i.interfaceFailed(face.Name, "open-iscsi cannot remove it: "+lastLines(output), code, err)
	}
	return nil
}

// settings are what a session is opened with. It shows only the disks that are scanned for,
// and a portal that is down is given up after two attempts, as the caller tries again.
func settings(chap *CHAP) [][2]string {
	list := [][2]string{
		{"node.startup", "manual"},
		{"node.session.scan", "manual"},
		{"node.session.initial_login_retry_max", "2"},
	}
	if chap == nil {
		return list
	}
	list = append(list, [2]string{"node.session.auth.authmethod", "CHAP"})
	for _, s := range [][2]string{
		{"node.session.auth.username", chap.Username}, {"node.session.auth.password", chap.Password},
		{"node.session.auth.username_in", chap.UsernameIn}, {"node.session.auth.password_in", chap.PasswordIn},
	} {
		if s[1] != "" {
			list = append(list, s)
		}
	}
	return list
}

// configure writes the settings of a session into the record of a portal. The errors name no
// setting.
func (i *Initiator) configure(lun LUN, p Portal, chap *CHAP) error {
	for _, database := range i.config.Databases {
		dir := filepath.Join(database, "nodes", lun.IQN)
		path, text, err := findRecord(dir, p, lun.Interface.Name)
		if err == nil && path != "" {
			err = inDatabase(database, func() error { return replace(database, path, withSettings(text, settings(chap))) })
			if err == nil {
				return nil
			}
		}
		if err != nil {
			return &volume.Failure{Cause: ErrNotPermitted, Subject: lun.IQN, What: fmt.Sprintf("open-iscsi's record of target %s cannot be written: %v", lun.IQN, err), Err: err,
				Next: "give podvol the directories of open-iscsi's database"}
		}
	}
	return &volume.Failure{Cause: ErrNotPermitted, Subject: lun.IQN, What: fmt.Sprintf("open-iscsi's record of target %s at %s is not found in %s", lun.IQN, p, strings.Join(i.config.Databases, " or ")),
		Next: "give podvol the directories of open-iscsi's database"}
}

// findRecord finds the record of a portal by its content, since its place depends on the
// version of open-iscsi.
func findRecord(dir string, p Portal, face string) (path, text string, err error) {
	err = filepath.WalkDir(dir, func(at string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		if isRecordOf(string(b), p, face) {
			path, text = at, string(b)
			return fs.SkipAll
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return path, text, err
}

func isRecordOf(text string, p Portal, face string) bool {
	found := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), " = "); ok {
			found[key] = value
		}
	}
	return found["node.conn[0].address"] == p.Host && found["node.conn[0].port"] == fmt.Sprint(p.Port) && found["iface.iscsi_ifacename"] == face
}

// withSettings returns a record with other settings.
func withSettings(text string, settings [][2]string) string {
	const end = "# END RECORD"
	var b strings.Builder
	for line := range strings.Lines(text) {
		key, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		replaced := strings.HasPrefix(line, end)
		for _, s := range settings {
			replaced = replaced || s[0] == key
		}
		if !replaced {
			b.WriteString(line)
		}
	}
	for _, s := range settings {
		fmt.Fprintf(&b, "%s = %s\n", s[0], s[1])
	}
	b.WriteString(end + "\n")
	return b.String()
}

const tempPrefix = ".podvol-"

// replace puts a file of root's alone in the place of a record. It is written beside the
// records, so that none of open-iscsi's own readers finds half of it.
func replace(database, path, text string) (err error) {
	f, err := os.CreateTemp(database, tempPrefix+"*") // 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.WriteString(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// inDatabase has the directory of a database alone on this machine, after what was left there
// is removed. None is there: it does nothing.
func inDatabase(database string, do func() error) error {
	var dir *os.File
	err := retry.Patiently(unix.EWOULDBLOCK, func() (err error) {
		dir, err = filelock.Open(database, unix.LOCK_EX|unix.LOCK_NB)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer filelock.Close(dir)
	if err := removeHalves(database); err != nil {
		return err
	}
	return do()
}

// removeHalves removes what processes that were killed have left of records: it may have a
// password. The caller has the database alone.
func removeHalves(database string) error {
	names, err := entries(database)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, tempPrefix) {
			continue
		}
		if err := os.Remove(filepath.Join(database, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
