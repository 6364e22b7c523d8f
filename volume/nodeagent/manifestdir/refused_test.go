package manifestdir

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/volume/objects/manifest"
)

func TestRefused(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	putFile(t, good, podNamed("a", "{name: v, emptyDir: {}}"))
	putFile(t, bad, podNamed("b", "{name: v, emptydir: {}}"))
	d := New(Config{Dir: dir, KnownFile: filepath.Join(t.TempDir(), "known")})
	d.Scan()
	refused := d.Refused()
	if len(refused) != 1 || refused[0].Path != bad || !strings.Contains(refused[0].Reason, "Pod shop/b") || refused[0].Since.IsZero() {
		t.Fatalf("refused: %+v", refused)
	}
	since := refused[0].Since
	putFile(t, bad, "{")
	putFile(t, good, "{")
	d.Scan()
	if refused = d.Refused(); len(refused) != 2 || refused[1].Since != since || !strings.Contains(refused[0].Reason, "the last good version of a.yaml stays in force") {
		t.Errorf("refused: %+v", refused)
	}
	putFile(t, good, podNamed("a", "{name: v, emptyDir: {}}"))
	putFile(t, bad, podNamed("b", "{name: v, emptyDir: {}}"))
	d.Scan()
	if refused = d.Refused(); len(refused) != 0 {
		t.Errorf("refused: %+v", refused)
	}
	moved := dir + ".moved"
	renamed(t, dir, moved)
	d.Scan()
	if refused = d.Refused(); len(refused) != 1 || refused[0].Path != dir || refused[0].Since.IsZero() {
		t.Errorf("refused: %+v", refused)
	}
	renamed(t, moved, dir)
	d.Scan()
	if refused = d.Refused(); len(refused) != 0 {
		t.Errorf("refused: %+v", refused)
	}
}

// What is no regular file is refused by its name and kind, and never waited for.
func TestWhatIsNoFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	must(t, unix.Mkfifo(filepath.Join(dir, "a.yaml"), 0o600))
	must(t, os.Symlink("/dev/zero", filepath.Join(dir, "b.yaml")))
	must(t, os.Mkdir(filepath.Join(dir, "c.yaml"), 0o700)) // as package manifest leaves it out
	socket, err := net.Listen("unix", filepath.Join(dir, "d.json"))
	must(t, err)
	defer socket.Close()
	must(t, os.Symlink("c.yaml", filepath.Join(dir, "e.yml")))
	d := New(Config{Dir: dir, KnownFile: filepath.Join(t.TempDir(), "known")})
	d.Scan()
	refused := d.Refused()
	if len(refused) != 4 {
		t.Fatalf("refused: %+v", refused)
	}
	_, err = manifest.Load(dir)
	for i, want := range []string{"a.yaml: it is a named pipe; ", "b.yaml: it is a device; ", "d.json: it is a socket; ", "e.yml: it is a link to a directory; "} {
		if !strings.Contains(refused[i].Reason, want) {
			t.Errorf("%q has not %q", refused[i].Reason, want)
		}
		if err == nil || !strings.Contains(err.Error(), refused[i].Reason) {
			t.Errorf("a command that loads them says %v, and not %q", err, refused[i].Reason)
		}
	}
}

// A pipe is not even opened: its writer would be let in, and lose what it writes.
func TestAPipeIsNotOpened(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "a.yaml")
	must(t, unix.Mkfifo(pipe, 0o600))
	watch, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	must(t, err)
	defer unix.Close(watch)
	_, err = unix.InotifyAddWatch(watch, pipe, unix.IN_OPEN)
	must(t, err)
	New(Config{Dir: dir, KnownFile: filepath.Join(t.TempDir(), "known")}).Scan()
	if n, err := unix.Read(watch, make([]byte, 1024)); n > 0 {
		t.Errorf("it has been opened: %v", err)
	}
}
