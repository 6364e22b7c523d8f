package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// mainVar makes the test binary the command itself.
const mainVar = "PODVOL_TEST_MAIN"

func TestMain(m *testing.M) {
	sandbox.Main()
	if os.Getenv(mainVar) != "" {
		main()
	}
	if err := testtool.MoreAtOnce(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// podvol runs the command and returns its exit code and output.
func podvol(t *testing.T, stdin string, args ...string) (code int, out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	code = run(t.Context(), args, streams{in: strings.NewReader(stdin), out: &o, err: &e})
	return code, o.String(), e.String()
}

// mustPodvol also requires the exit code.
func mustPodvol(t *testing.T, want int, args ...string) (out, errOut string) {
	t.Helper()
	code, out, errOut := podvol(t, "", args...)
	if code != want {
		t.Fatalf("podvol %s: exit code %d, want %d\nstdout:\n%s\nstderr:\n%s", strings.Join(args, " "), code, want, out, errOut)
	}
	return out, errOut
}

func rowsOf(t *testing.T, text string) []rows.Row {
	t.Helper()
	var rows []rows.Row
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&rows); err != nil {
		t.Fatalf("not a list of rows: %v\n%s", err, text)
	}
	return rows
}

// tree lists everything below a directory.
func tree(t *testing.T, dir string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

const web = "../../testdata/web.yaml"

func manifestFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFakeMountShowsEverythingAndTouchesNothing(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	root := filepath.Join(t.TempDir(), "root")
	out, errOut := mustPodvol(t, exitOK, "mount", "--fake", "-f", web, "--root-dir", root, "-o", "json")
	rows := rowsOf(t, out)
	if len(rows) < 7 {
		t.Errorf("%d rows, want at least seven volumes", len(rows))
	}
	for _, r := range rows {
		if r.State != "mounted" || !r.Fake || r.DurationSeconds != 0 || r.Error != "" || r.Path == "" || r.Plugin == "" || !strings.Contains(r.Pod, "/") {
			t.Errorf("row %+v", r)
		}
		if strings.Contains(r.Path, temp) {
			t.Errorf("the row shows the temporary directory: %s", r.Path)
		}
	}
	if !strings.Contains(errOut, "mount -t tmpfs") || !strings.Contains(errOut, root+"/pods/") || strings.Contains(errOut, temp) {
		t.Errorf("the commands are not shown, or with the temporary directory:\n%s", errOut)
	}
	for range 5 {
		if _, again := mustPodvol(t, exitOK, "mount", "--fake", "-f", web, "--root-dir", root, "-o", "json"); again != errOut {
			t.Errorf("another run shows\n%s, not\n%s", again, errOut)
		}
	}
	if _, err := os.Stat(root); !os.IsNotExist(err) {
		t.Errorf("the root directory was touched: %v", err)
	}
	if left := tree(t, temp); len(left) != 1 {
		t.Errorf("left in the temporary directory: %v", left)
	}
}

func TestFakeMountMakesNoHostPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	file := manifestFile(t, `
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec:
  containers: [{name: c, image: i, volumeMounts: [{name: data, mountPath: /data}]}]
  volumes:
  - {name: data, hostPath: {path: `+dir+`, type: DirectoryOrCreate}}
`)
	_, errOut := mustPodvol(t, exitOK, "mount", "--fake", "-f", file, "--pod", "shop/web")
	if !strings.Contains(errOut, "mkdir -p -m 0755 "+dir) {
		t.Errorf("the command is not shown:\n%s", errOut)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the host path was made: %v", err)
	}
}

func TestUsageErrors(t *testing.T) {
	good := manifestFile(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, emptyDir: {}}]}\n")
	tests := map[string][]string{
		"no manifest":          {"mount", "--fake"},
		"missing file":         {"mount", "--fake", "-f", "/nonexistent.yaml"},
		"unknown flag":         {"mount", "--fake", "--bogus"},
		"unknown command":      {"mounts"},
		"an argument":          {"mount", "--fake", good},
		"unknown output":       {"mount", "--fake", "-f", good, "-o", "xml"},
		"malformed pod":        {"mount", "--fake", "-f", good, "--pod", "web"},
		"no such pod":          {"mount", "--fake", "-f", good, "--pod", "default/other"},
		"timeout":              {"mount", "--fake", "-f", good, "--timeout", "0s"},
		"empty manifest":       {"mount", "--fake", "-f", manifestFile(t, "")},
		"binary manifest":      {"mount", "--fake", "-f", manifestFile(t, "\x7fELF\x00\x01\x02")},
		"unknown field":        {"mount", "--fake", "-f", manifestFile(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {volums: []}\n")},
		"only a config map":    {"mount", "--fake", "-f", manifestFile(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n")},
		"unmount what":         {"unmount"},
		"unmount all and more": {"unmount", "--all", "--pod", "a/b"},
		"unmount malformed":    {"unmount", "--pod", "a"},
		"status argument":      {"status", "x"},
		"status output":        {"status", "-o", "xml"},
	}
	for name, args := range tests {
		t.Run(name, func(t *testing.T) {
			code, out, errOut := podvol(t, "", args...)
			if code != exitUsage || out != "" || !strings.HasPrefix(errOut, "podvol: ") {
				t.Errorf("exit code %d, want %d\nstdout: %s\nstderr: %s", code, exitUsage, out, errOut)
			}
		})
	}
}

func TestMistypedWordsSayWhatIsMeant(t *testing.T) {
	pod := manifestFile(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i, volumeMount: []}]}\n")
	for args, want := range map[string]string{
		"versio":                 `unknown command "versio"; did you mean "version"?; see podvol --help`,
		"statsu -o json":         `did you mean "status"?`,
		"status --roo-dir /x":    `unknown flag: --roo-dir; did you mean "--root-dir"?; see podvol status --help`,
		"pvc delete --dryrun a":  `did you mean "--dry-run"?`,
		"pv -o jsno":             `did you mean "json"?`,
		"mount --fake -f " + pod: `spec.containers[0].volumeMount: there is no such field; did you mean "volumeMounts"?`,
		"fsck --insid":           "unknown flag: --insid; see podvol fsck --help",
		"status -x":              "unknown shorthand flag: 'x' in -x; see podvol status --help",
		"help mout":              `unknown command "mout"; did you mean "mount"?; see podvol --help`,
		"help pvc delte":         `unknown command "delte"; did you mean "delete"?; see podvol pvc --help`,
		"something":              `unknown command "something"; see podvol --help`,
		"umount --all":           `unknown command "umount"; did you mean "unmount"?`,
		"expl":                   `did you mean "explain"?`,
		"describe shop/web":      `unknown command "describe"; did you mean "explain"?`,
		"mount --file x":         `unknown flag: --file; did you mean "--filename"?`,
		"mount --node-name x":    `unknown flag: --node-name; did you mean "--node"?`,
		"mount x.yaml":           `podvol mount takes no arguments, got "x.yaml"; name manifests with -f`,
		"status x":               "podvol status takes no arguments, got \"x\"\n",
	} {
		if _, errOut := mustPodvol(t, exitUsage, strings.Fields(args)...); !strings.Contains(errOut, want) {
			t.Errorf("%s: %s, want %q", args, errOut, want)
		}
	}
	if out, _ := mustPodvol(t, exitOK, "help", "pvc", "delete"); !strings.Contains(out, "podvol pvc delete ") {
		t.Errorf("help prints\n%s", out)
	}
	if code, _, errOut := podvol(t, "", "run", "--contaner", "c"); code != exitRunFailed || !strings.Contains(errOut, `did you mean "--container"?`) {
		t.Errorf("run: exit code %d, %s", code, errOut)
	}
}

func TestRootDirThatCannotBeUsed(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		_, errOut := mustPodvol(t, exitUsage, "mount", "-f", web, "--root-dir", file)
		if !strings.Contains(errOut, file) || !strings.Contains(errOut, "choose another root directory") {
			t.Errorf("stderr: %s", errOut)
		}
	})
}

// A full disk is no wrong command line.
func TestRootDirOnAFullDisk(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root := t.TempDir()
		if err := unix.Mount("none", root, "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(root, unix.MNT_DETACH)
		fill(t, filepath.Join(root, "filler"))
		_, errOut := mustPodvol(t, exitFailed, "mount", "-f", web, "--root-dir", root)
		if !strings.Contains(errOut, "no space left on device; free some space") || !strings.Contains(errOut, "or choose another root directory") {
			t.Errorf("stderr: %s", errOut)
		}
	})
}

func TestFailedVolumeKeepsItsErrorUnderItsRow(t *testing.T) {
	file := manifestFile(t, `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: i, volumeMounts: [{name: good, mountPath: /good}, {name: bad, mountPath: /bad}, {name: old, mountPath: /old}]}]
  volumes:
  - {name: good, emptyDir: {}}
  - {name: bad, configMap: {name: missing}}
  - {name: old, gitRepo: {repository: "https://example.com/r.git"}}
`)
	out, errOut := mustPodvol(t, exitFailed, "mount", "--fake", "-f", file)
	if !strings.Contains(out, "good") || strings.Contains(out, "not found") {
		t.Errorf("stdout: %s", out)
	}
	for _, want := range []string{"default/web bad: ", "ConfigMap default/missing", "clone in an init container"} {
		if !strings.Contains(errOut, want) {
			t.Errorf("stderr lacks %q:\n%s", want, errOut)
		}
	}
	out, _ = mustPodvol(t, exitFailed, "mount", "--fake", "-f", file, "-o", "yaml")
	var rows []rows.Row
	if err := yaml.UnmarshalStrict([]byte(out), &rows); err != nil || len(rows) != 3 {
		t.Fatalf("%v in\n%s", err, out)
	}
	if rows[0].State != "mounted" || rows[1].State != "failed" || rows[1].Error == "" {
		t.Errorf("rows = %+v", rows)
	}
}

func TestClaimIsBoundAndMounted(t *testing.T) {
	out, errOut := mustPodvol(t, exitOK, "mount", "--fake", "-f", "../../testdata/nfs-web.yaml", "-o", "json")
	rows := rowsOf(t, out)
	if len(rows) != 2 {
		t.Fatalf("%d rows, want one for each replica", len(rows))
	}
	for _, r := range rows {
		if r.Source != "10.244.1.4:/" || !strings.HasSuffix(r.Path, "/volumes/kubernetes.io~nfs/nfs") {
			t.Errorf("row %+v", r)
		}
		if !strings.Contains(errOut, "mount -t nfs 10.244.1.4:/ "+r.Path) {
			t.Errorf("no mount command for %s:\n%s", r.Path, errOut)
		}
	}
}

func TestUnboundClaimSaysWhy(t *testing.T) {
	file := manifestFile(t, `
apiVersion: v1
kind: PersistentVolume
metadata: {name: small}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteMany], nfs: {server: 127.0.0.1, path: /}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: large}
spec: {accessModes: [ReadWriteMany], storageClassName: "", resources: {requests: {storage: 5Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}, {name: ok, mountPath: /ok}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: large}}, {name: ok, emptyDir: {}}]
`)
	out, errOut := mustPodvol(t, exitFailed, "mount", "--fake", "-f", file)
	if !strings.Contains(errOut, "too small (small: 1Gi of 5Gi)") {
		t.Errorf("stderr does not say which volume was too small:\n%s", errOut)
	}
	if !strings.Contains(out, "would mount") {
		t.Errorf("the other volume is not mounted:\n%s", out)
	}
}

func TestManifestFromStandardInput(t *testing.T) {
	text, err := os.ReadFile(web)
	if err != nil {
		t.Fatal(err)
	}
	code, out, errOut := podvol(t, string(text), "mount", "--fake", "-f", "-")
	if code != exitOK || strings.Count(out, "would mount") < 7 {
		t.Errorf("exit code %d\n%s\n%s", code, out, errOut)
	}
}

func TestInterruptEndsAMount(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errOut bytes.Buffer
	code := run(ctx, []string{"mount", "--fake", "-f", web}, streams{in: strings.NewReader(""), out: &out, err: &errOut})
	if code != exitFailed {
		t.Errorf("exit code %d\n%s\n%s", code, &out, &errOut)
	}
}

// Without the right to mount the command says so in one line, before it
// touches anything; --fake works all the same.
func TestWithoutTheRightToMount(t *testing.T) {
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	binary := filepath.Join(dir, "podvol")
	copyFile(t, "/proc/self/exe", binary, 0o755)
	text, err := os.ReadFile(web)
	if err != nil {
		t.Fatal(err)
	}
	asUser := func(args ...string) (code int, out, errOut string) {
		var o, e bytes.Buffer
		c := exec.CommandContext(t.Context(), binary, args...)
		c.Env = []string{mainVar + "=1", "TMPDIR=/tmp"}
		c.Stdin, c.Stdout, c.Stderr, c.Dir = bytes.NewReader(text), &o, &e, "/"
		if os.Geteuid() == 0 {
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
		if err := c.Run(); err != nil && c.ProcessState == nil {
			t.Fatal(err)
		}
		return c.ProcessState.ExitCode(), o.String(), e.String()
	}
	root := filepath.Join(dir, "root")
	code, out, errOut := asUser("mount", "-f", "-", "--root-dir", root)
	if code != exitFailed || out != "" || strings.Count(errOut, "\n") != 1 || !strings.Contains(errOut, "CAP_SYS_ADMIN") || !strings.Contains(errOut, "--fake") {
		t.Errorf("exit code %d\nstdout: %s\nstderr: %s", code, out, errOut)
	}
	code, out, errOut = asUser("mount", "--fake", "-f", "-")
	if code != exitOK || strings.Count(out, "would mount") < 7 {
		t.Errorf("--fake: exit code %d\nstdout: %s\nstderr: %s", code, out, errOut)
	}
	if code, _, errOut = asUser("mount", "-f", "-"); code != exitUsage || !strings.Contains(errOut, "--root-dir") {
		t.Errorf("without HOME: exit code %d\nstderr: %s", code, errOut)
	}
	if _, err := os.Stat(root); !os.IsNotExist(err) {
		t.Errorf("the root directory was touched: %v", err)
	}
}

func copyFile(t *testing.T, from, to string, mode os.FileMode) {
	t.Helper()
	source, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(target, source); err != nil {
		t.Fatal(err)
	}
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestDefaultRootDir(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "/run/user/7") // which is emptied at logout
	for _, tc := range []struct{ state, home, want string }{
		{"/state", "/home/u", "/state/podvol"},
		{"", "/home/u", "/home/u/.local/state/podvol"},
		{"relative", "/home/u", "/home/u/.local/state/podvol"},
		{"", "", ""},
	} {
		t.Setenv("XDG_STATE_HOME", tc.state)
		t.Setenv("HOME", tc.home)
		want := tc.want
		if os.Geteuid() == 0 {
			want = "/var/lib/podvol"
		}
		if got := defaultRootDir(); got != want {
			t.Errorf("XDG_STATE_HOME=%s HOME=%s: %s, want %s", tc.state, tc.home, got, want)
		}
		for _, c := range rootCommand(streams{}).Commands() {
			if flag := c.Flags().Lookup("root-dir"); flag != nil && flag.DefValue != want {
				t.Errorf("podvol %s has %s", c.Name(), flag.DefValue)
			}
		}
	}
}

// blockedReader is a standard input on which nothing ever comes.
type blockedReader struct {
	begun func()
	ended <-chan struct{}
}

func (b blockedReader) Read([]byte) (int, error) { b.begun(); <-b.ended; return 0, io.EOF }

func TestInterruptEndsReading(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	defer close(ended)
	var out, errOut bytes.Buffer
	code := run(ctx, []string{"mount", "--fake", "-f", "-"}, streams{in: blockedReader{cancel, ended}, out: &out, err: &errOut})
	if code != exitFailed || !strings.Contains(errOut.String(), "interrupted") {
		t.Errorf("exit code %d, stderr %s", code, &errOut)
	}
}

func TestEmptyLists(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	for format, want := range map[string]string{"json": "[]\n", "yaml": "[]\n", "table": ""} {
		if out, _ := mustPodvol(t, exitOK, "status", "--root-dir", root, "-o", format); out != want {
			t.Errorf("%s: %q", format, out)
		}
	}
}

// The keys of a row are what scripts rely on.
func TestRowKeys(t *testing.T) {
	out, _ := mustPodvol(t, exitOK, "mount", "--fake", "-f", web, "-o", "json")
	var rows []map[string]any
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatal(err)
	}
	var keys []string
	for key := range rows[0] {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	if want := []string{"durationSeconds", "error", "fake", "path", "plugin", "pod", "source", "state", "volume"}; !slices.Equal(keys, want) {
		t.Errorf("keys %v, want %v", keys, want)
	}
}
