package sandbox_test

import (
	"bytes"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// binDir is where the program is in its sandbox.
const binDir = "/bin-of-the-test"

// program returns the configuration that runs this test binary as the program,
// which does what actions say.
func program(t *testing.T, actions ...string) sandbox.Config {
	t.Helper()
	return sandbox.Config{
		Args:   append([]string{probeName}, actions...),
		Env:    []string{"GORACE=atexit_sleep_ms=20", "PATH=" + binDir},
		Mounts: []sandbox.Mount{{Volume: "program", Source: copyOfSelf(t, t.TempDir()), Destination: binDir + "/" + probeName, File: true, ReadOnly: true}},
	}
}

// copyOfSelf puts this test binary where everybody who reaches dir may execute it.
func copyOfSelf(t *testing.T, dir string) string {
	t.Helper()
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	path := filepath.Join(dir, probeName)
	program, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(program, self); err != nil {
		t.Fatal(err)
	}
	if err := program.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// run runs the program and returns what it says.
func run(t *testing.T, c sandbox.Config) (seen, int) {
	t.Helper()
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	before := look(t)
	code, err := sandbox.Run(t.Context(), c)
	if err != nil {
		t.Fatalf("Run: %v\n%s", err, errs.String())
	}
	if after := look(t); !slices.Equal(before, after) {
		t.Errorf("the mount table was\n%s\nand is now\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	var s seen
	if code == 0 {
		if err := json.Unmarshal(out.Bytes(), &s); err != nil {
			t.Fatalf("the program says %q: %v\n%s", out.String(), err, errs.String())
		}
	}
	return s, code
}

// look returns the mount table of a namespace of the test's own. In the machine's, where
// the ordinary user is, anybody mounts beside the test, and that user can do nothing.
func look(t *testing.T) []string {
	t.Helper()
	if os.Getenv(ordinaryVar) != "" {
		return nil
	}
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(content)), "\n")
}

// snapshot lists everything below a directory of one file system.
func snapshot(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		all = append(all, path+" "+info.Mode().String()+" "+info.ModTime().String())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func mountTmpfs(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("of-the-test", path, "tmpfs", 0, "size=256k,mode=755"); err != nil {
		t.Fatal(err)
	}
}

func TestAProgramSeesItsMounts(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir+"/data/file", "data")
		mountTmpfs(t, dir+"/data/below")
		write(t, dir+"/data/below/file", "below")
		write(t, dir+"/config/key", "value")
		c := program(t, "read:/podvol-data/file", "read:/podvol-data/below/file", "write:/podvol-data/new", "write:/podvol-data/below/new",
			"read:/podvol-data/config/key", "write:/podvol-data/config/key", "read:/etc-of-nobody/app/key", "read:/etc/passwd")
		write(t, dir+"/data/config/placeholder", "")
		c.Mounts = append(c.Mounts,
			sandbox.Mount{Volume: "data", Source: dir + "/data", Destination: "/podvol-data"},
			sandbox.Mount{Volume: "config", Source: dir + "/config", Destination: "/podvol-data/config", ReadOnly: true},
			sandbox.Mount{Volume: "key", Source: dir + "/config/key", Destination: "/etc-of-nobody/app/key", File: true},
		)
		s, code := run(t, c)
		passwd, err := os.ReadFile("/etc/passwd")
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"data", "below", "written", "written", "value", "EROFS", "value", string(passwd)}
		if code != 0 || !slices.Equal(s.Results, want) {
			t.Errorf("exit code %d, results %q, want %q", code, s.Results, want)
		}
	})
}
