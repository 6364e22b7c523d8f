package glusterfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume/internal/podmount"
)

const (
	// maxLog is the size from which on a log is emptied.
	maxLog = 1 << 20
	// maxSays is how much of a log's end becomes part of an error.
	maxSays = 1 << 10
)

// logFile is where the volume's client logs. While there may be a client, it exists, and its
// directory tells the manager that the volume was set up.
func (c *client) logFile() string {
	return filepath.Join(c.Host.GetPodPluginDir(c.PodUID, PluginName), c.Name, "client.log")
}

// makeLog makes the log file, or empties it.
func (c *client) makeLog() error {
	path := c.logFile()
	// Another volume's teardown may remove a directory that is empty.
	return retry.Patiently(unix.ENOENT, func() error {
		if _, err := podmount.MakeDir(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return err
		}
		return f.Close()
	})
}

// boundLog empties a log that has become large. The client goes on at its beginning, since
// it appends.
func (c *client) boundLog() {
	info, err := os.Lstat(c.logFile())
	if err == nil && info.Mode().IsRegular() && info.Size() >= maxLog {
		_ = os.Truncate(c.logFile(), 0) // else the next time
	}
}

// endOfLog returns the last lines of the log, as text.
func (c *client) endOfLog() string {
	f, err := os.OpenFile(c.logFile(), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, err = f.Seek(max(0, size-maxSays), io.SeekStart)
		if err != nil {
			return ""
		}
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSays))
	if err != nil {
		return ""
	}
	plain := func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return '?'
	}
	return strings.TrimSpace(strings.Map(plain, string(text)))
}

// removeLog removes the log file, and its directories if they are empty then.
func (c *client) removeLog() error {
	path := c.logFile()
	if err := podmount.Unlink(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := podmount.RemoveDir(filepath.Dir(path)); err != nil {
		return err
	}
	plugin := filepath.Dir(filepath.Dir(path))
	if podmount.RemoveDir(plugin) == nil {
		_ = podmount.RemoveDir(filepath.Dir(plugin)) // another plugin's may be in it
	}
	return nil
}
