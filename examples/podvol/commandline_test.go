package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func TestShellJoin(t *testing.T) {
	got := shellJoin([]string{"podvol", "-f", "my pod.yaml", "it's", "", "a=b/c.d-e_f:g", "it's\na\\ü"})
	if want := `podvol -f 'my pod.yaml' 'it'\''s' '' a=b/c.d-e_f:g $'it\'s\012a\\\303\274'`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestProgramName(t *testing.T) {
	for arg0, want := range map[string]string{
		"/tmp/go-build123/b001/exe/podvol": "go run -C examples ./podvol",
		"/usr/local/bin/podvol":            "/usr/local/bin/podvol",
		"/opt/my tools/podvol":             "'/opt/my tools/podvol'",
	} {
		if got := shellJoin(programName(arg0)); got != want {
			t.Errorf("%s: %s, want %s", arg0, got, want)
		}
	}
}

// A command whose reader has had enough, as head has, says nothing about that.
func TestNothingIsSaidOfAReaderThatIsGone(t *testing.T) {
	read, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	read.Close()
	var errs bytes.Buffer
	c := exec.Command("/proc/self/exe", "version")
	c.Env, c.Stdout, c.Stderr = append(os.Environ(), mainVar+"=1"), out, &errs
	_ = c.Run() // the code says it
	if code := c.ProcessState.ExitCode(); code != exitFailed || errs.Len() > 0 {
		t.Errorf("exit code %d, it says %q", code, errs.String())
	}
	gone := &os.PathError{Op: "write", Path: os.Stdout.Name(), Err: unix.EPIPE}
	for _, err := range []error{errors.Join(gone, errors.New("broken")), &os.PathError{Op: "write", Path: "/x", Err: unix.EPIPE}, unix.EPIPE} {
		if isUnread(err) {
			t.Errorf("%v is not said", err)
		}
	}
}
