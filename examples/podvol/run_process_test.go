package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

func TestRunAsOrdinaryUser(t *testing.T) {
	r := asOrdinaryUser(t)
	text, err := os.ReadFile(tour)
	if err != nil {
		t.Fatal(err)
	}
	file := openFile(t, string(text))
	out, _ := r.run(t, 0, "run", "-f", file)
	for _, want := range []string{"Hello from a config map", "only-an-example", "/tour/config ro"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	r.assertNothingLeft(t)
	out, _ = r.run(t, 0, "run", "-f", openFile(t, nestedRun), "--", "sh", "-ec", "echo file > /part/x; cat /dir/logs/app/x; id -u; grep -c ' /dir/nested ' /proc/self/mountinfo")
	if out != "file\n0\n1\n" {
		t.Errorf("%q", out)
	}
	r.run(t, 9, "run", "-f", file, "--", "sh", "-c", "exit 9")
	r.run(t, 137, "run", "-f", file, "--", "sh", "-c", "kill -KILL $$")
	r.assertNothingLeft(t)
	out, errOut := r.run(t, exitRunFailed, "run", "-f", file, "--rootfs", "/nonexistent", "--", "echo", "run")
	if out != "" || !strings.Contains(errOut, "/nonexistent") {
		t.Errorf("stdout %s, stderr %s", out, errOut)
	}
}

// A place that anybody could have made is not trusted, and one of the user's own
// does not stay where a run has left nothing.
func TestRunTrustsNoPlaceOfOthers(t *testing.T) {
	r := asOrdinaryUser(t)
	home := r.home
	text, err := os.ReadFile(tour)
	if err != nil {
		t.Fatal(err)
	}
	file := openFile(t, string(text))
	r.run(t, 0, "run", "-f", file, "--", "true")
	if left, err := os.ReadDir(home); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	uid, others := os.Geteuid(), os.Geteuid()
	if uid == 0 {
		uid, others = ordinaryUser, ordinaryUser-1
	}
	dir := filepath.Join(home, "podvol")
	for name, foreign := range map[string]struct {
		owner int
		mode  os.FileMode
		says  string
	}{
		"another user's":      {others, 0o755, "belongs to another user"},
		"everybody can write": {uid, 0o777, "can be changed by others"},
		"a group can write":   {uid, 0o770, "can be changed by others"},
	} {
		if name == "another user's" && others == uid {
			continue // nobody but root can make one
		}
		// What is inside is the user's own: but whose is around it can put
		// something else there.
		must(t, os.MkdirAll(filepath.Join(dir, "podvol"), 0o700))
		must(t, os.Lchown(filepath.Join(dir, "podvol"), uid, -1))
		must(t, os.Lchown(dir, foreign.owner, -1))
		must(t, os.Chmod(dir, foreign.mode))
		_, errOut := r.run(t, exitRunFailed, "run", "-f", file, "--", "true")
		if !strings.Contains(errOut, dir+" "+foreign.says) || !strings.Contains(errOut, "--root-dir") {
			t.Errorf("%s: stderr %s", name, errOut)
		}
		must(t, os.RemoveAll(dir))
	}
}

const withIDs = `
apiVersion: v1
kind: Pod
metadata: {name: ids}
spec:
  securityContext: {runAsUser: 1234, runAsGroup: 345, fsGroup: 56, supplementalGroups: [78]}
  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v/data}]}]
  volumes: [{name: v, emptyDir: {}}]
`

// All of the ids that are not mapped are named, before anything is touched.
func TestRunNeedsIDs(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base, file := t.TempDir(), openFile(t, withIDs)
		args := []string{"run", "-f", file, "--root-dir", base, "--", "sh", "-c", "id -u; id -g; id -G; stat -c %g:%a /v/data; touch /v/data/x"}
		if os.Getenv("PODVOL_NSTEST") == "user" {
			out, errOut := mustPodvol(t, exitRunFailed, args...)
			assertNamesIDs(t, out, errOut)
			assertNoRuns(t, base)
			return
		}
		out, _ := mustPodvol(t, exitOK, args...)
		assertRanWithIDs(t, out)
		assertNoRuns(t, base)
		withSubordinateIDs(t)
	})
}

func assertNamesIDs(t *testing.T, out, errOut string) {
	t.Helper()
	for _, want := range []string{
		"default/ids", "user 1234 (spec.securityContext.runAsUser)", "group 345 (spec.securityContext.runAsGroup)",
		"group 56 (spec.securityContext.fsGroup)", "group 78 (spec.securityContext.supplementalGroups[0])", "as root",
	} {
		if out != "" || !strings.Contains(errOut, want) {
			t.Errorf("%q is not in %s; stdout %s", want, errOut, out)
		}
	}
}

func assertRanWithIDs(t *testing.T, out string) {
	t.Helper()
	lines := strings.Split(out, "\n")
	if len(lines) < 4 || lines[0] != "1234" || lines[1] != "345" || lines[3] != "56:2777" {
		t.Fatalf("%q", lines)
	}
	groups := strings.Fields(lines[2])
	if len(groups) != 3 || !strings.Contains(lines[2], "56") || !strings.Contains(lines[2], "78") {
		t.Errorf("groups %q", groups)
	}
}

// withSubordinateIDs goes on as an ordinary user, with and without ids of
// others.
func withSubordinateIDs(t *testing.T) {
	testtool.Need(t, "newuidmap", "newgidmap")
	r := asOrdinaryUser(t)
	file := openFile(t, withIDs)
	args := []string{"run", "-f", file, "--", "sh", "-c", "id -u; id -g; id -G; stat -c %g:%a /v/data; touch /v/data/x"}
	give := func(text string) {
		t.Helper()
		granted := filepath.Join(t.TempDir(), "granted")
		if err := os.WriteFile(granted, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/etc/subuid", "/etc/subgid"} {
			if err := unix.Mount(granted, path, "", unix.MS_BIND, ""); err != nil {
				t.Fatalf("%s: %v; install the package uidmap", path, err)
			}
			t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
		}
	}
	give("someone:500000:65536\n")
	out, errOut := r.run(t, exitRunFailed, args...)
	assertNamesIDs(t, out, errOut)
	if !strings.Contains(errOut, "usermod --add-subuids") {
		t.Errorf("it does not say what to do: %s", errOut)
	}

	give(fmt.Sprintf("%d:500000:65536\n", ordinaryUser))
	out, _ = r.run(t, 0, args...)
	assertRanWithIDs(t, out)

	withInterruptedStart(t)

	give(fmt.Sprintf("%d:500000:60\n", ordinaryUser))
	out, errOut = r.run(t, exitRunFailed, args...)
	if strings.Contains(errOut, "group 56") || !strings.Contains(errOut, "group 78") || !strings.Contains(errOut, "fewer ids") {
		t.Errorf("with too few: %s%s", out, errOut)
	}

	// What the files say, and what newuidmap is told, differ: it refuses.
	give(fmt.Sprintf("%d:500000:65536\n", ordinaryUser))
	r.withHelpers(t, "echo not today >&2\nexit 1")
	out, errOut = r.run(t, exitRunFailed, args...)
	assertNamesIDs(t, out, errOut)
	if !strings.Contains(errOut, "not today") {
		t.Errorf("it does not say why: %s", errOut)
	}

	r.env = append(r.env, "PATH=/nonexistent")
	out, errOut = r.run(t, exitRunFailed, args...)
	assertNamesIDs(t, out, errOut)
	if !strings.Contains(errOut, "install newuidmap (package uidmap") {
		t.Errorf("it does not say what to install: %s", errOut)
	}
	r.assertNothingLeft(t)
}

// A machine that makes no user namespaces: the error names the setting. Here it
// is one of a user namespace's own.
func TestRunWhereUserNamespacesAreDenied(t *testing.T) {
	r := ownProcess(t)
	script := `echo 0 > /proc/sys/user/max_user_namespaces && exec setpriv --inh-caps -sys_admin --bounding-set -sys_admin "$0" "$@"`
	c := exec.CommandContext(t.Context(), "unshare", "--user", "--map-root-user", "sh", "-c", script, r.binary, "run", "--root-dir", r.root, "-f", openFile(t, withIDs), "--", "echo", "run")
	c.Env = r.env
	out, err := c.CombinedOutput()
	if c.ProcessState == nil {
		t.Fatal(err)
	}
	if code := c.ProcessState.ExitCode(); code != exitRunFailed || !strings.Contains(string(out), "sysctl -w user.max_user_namespaces=") || strings.Contains(string(out), "run\n") {
		t.Errorf("exit code %d: %s", code, out)
	}
	r.assertNothingLeft(t)
}

func TestRunPassesSignalsOn(t *testing.T) {
	for name, user := range map[string]func(*testing.T) *runner{"own": ownProcess, "ordinary": asOrdinaryUser} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				if os.Getenv("PODVOL_NSTEST") == "user" && name == "ordinary" {
					user = ownProcess // there are no two users here
				}
				r := user(t)
				file := openFile(t, withoutIDs)
				startsWithSignals(t, unix.SIGINT, unix.SIGHUP)
				for _, sent := range []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGUSR1} {
					script := fmt.Sprintf(`trap 'echo got; exit 3' %d; echo ready; while :; do sleep 0.05; done`, sent)
					s := r.start(t, "run", "-f", file, "--", "sh", "-c", script)
					if err := s.Process.Signal(sent); err != nil {
						t.Fatal(err)
					}
					if out, code := s.end(t); out != "got\n" || code != 3 {
						t.Errorf("%v: %q, exit code %d, stderr %s", sent, out, code, s.errOut)
					}
				}
				s := r.start(t, "run", "-f", file, "--", "sh", "-c", "echo ready; exec sleep 100")
				if err := s.Process.Signal(unix.SIGTERM); err != nil {
					t.Fatal(err)
				}
				if _, code := s.end(t); code != 143 {
					t.Errorf("exit code %d", code)
				}
				r.assertNothingLeft(t)
			})
		})
	}
}

var withoutIDs = regexp.MustCompile(`(?m)^  securityContext:.*\n`).ReplaceAllString(withIDs, "")

// Whatever kills podvol kills the program too, and fsck --repair removes the
// rest; a run that lives it leaves alone.
func TestRunIsKilled(t *testing.T) {
	for name, user := range map[string]func(*testing.T) *runner{"own": ownProcess, "ordinary": asOrdinaryUser} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				if os.Getenv("PODVOL_NSTEST") == "user" && name == "ordinary" {
					user = ownProcess
				}
				r := user(t)
				file := openFile(t, nestedRun)
				script := `echo x > /dir/file; echo y > /part/file; echo ready; exec sleep 100`
				killed := r.start(t, "run", "-f", file, "--", "sh", "-c", script)
				path := onlyEntry(t, runsOf(r.base()).Dir())
				lives := r.start(t, "run", "-f", file, "--", "sh", "-c", "trap 'cat /dir/file; exit 4' TERM; echo lives > /dir/file; echo ready; while :; do sleep 0.05; done")
				if err := killed.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				if out, _ := killed.end(t); out != "" { // its end closes the output that the program shares
					t.Errorf("it says %q", out)
				}
				awaitUnlocked(t, path)
				out, errOut := r.run(t, exitFailed, "fsck", "-o", "json")
				problems := problemsOf(t, out)
				if len(problems) != 1 || problems[0].Problem != string(problemDeadRun) || problems[0].Pod != "default/nested" || problems[0].Path != path || !strings.Contains(errOut, "fsck --repair") {
					t.Errorf("stdout %s\nstderr %s", out, errOut)
				}
				out, _ = r.run(t, exitOK, "fsck", "--repair", "-o", "json")
				if problems := problemsOf(t, out); len(problems) != 1 || !problems[0].Repaired {
					t.Errorf("stdout %s", out)
				}
				if _, err := os.Stat(path); !os.IsNotExist(err) {
					t.Errorf("%s is left: %v", path, err)
				}
				assertNothingMountedBelow(t, path)
				if err := lives.Process.Signal(unix.SIGTERM); err != nil {
					t.Fatal(err)
				}
				if out, code := lives.end(t); out != "lives\n" || code != 4 {
					t.Errorf("the other run: %q, exit code %d, stderr %s", out, code, lives.errOut)
				}
				r.assertNothingLeft(t)
			})
		})
	}
}

// awaitUnlocked waits for the lock of who was killed: the kernel may let go of it a
// moment after the output.
func awaitUnlocked(t *testing.T, path string) {
	t.Helper()
	lock, err := os.Open(path)
	must(t, err)
	defer lock.Close()
	must(t, eintr.Do(func() error { return unix.Flock(int(lock.Fd()), unix.LOCK_EX) }))
}

func onlyEntry(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("%s has %v, %v", dir, entries, err)
	}
	return filepath.Join(dir, entries[0].Name())
}
