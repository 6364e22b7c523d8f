package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/examples/podvol/internal/table"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/terminal"
)

// hostile has what a terminal, or the eye, is led by: an escape sequence, its C1 and
// 8-bit forms, a return, a backspace, overrides of direction, another line.
const hostile = "x\x1b[31m\x1b]0;t\a\u009b31m\x9b2J\r\b\x7f\u202e\u2066\u200f\u2028\u0085é"

// assertPlain checks that a text tells a terminal nothing.
func assertPlain(t *testing.T, what, text string) {
	t.Helper()
	if !utf8.ValidString(text) {
		t.Errorf("%s is no UTF-8: %q", what, text)
	}
	for _, r := range text {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)) {
			t.Errorf("%s has %U: %q", what, r, text)
			return
		}
	}
}

func TestPlainText(t *testing.T) {
	var out bytes.Buffer
	n, err := plaintext.Writer(&out).Write([]byte(hostile + "\n\tok\n"))
	assertPlain(t, "what is written", out.String())
	if err != nil || n != len(hostile)+5 || !strings.HasSuffix(out.String(), "é\n\tok\n") || !strings.Contains(out.String(), `\u001b[31m`) || !strings.Contains(out.String(), `\x9b2J`) {
		t.Errorf("%d, %v: %q", n, err, out.String())
	}
	if got := plaintext.Cell("a\nb\tc"); got != `a\nb\tc` {
		t.Errorf("a cell: %q", got)
	}
	// JSON stays what it is.
	value := strings.ToValidUTF8(hostile, "")
	line, err := json.Marshal(value)
	out.Reset()
	_, writeErr := plaintext.Writer(&out).Write(line)
	var back string
	if err := errors.Join(err, writeErr, json.Unmarshal(out.Bytes(), &back)); err != nil || back != value {
		t.Errorf("%v: %q became %q", err, value, back)
	}
	assertPlain(t, "JSON", out.String())
}

// Whatever a name is, no command shows it to the terminal as it is.
func TestNoCommandTellsTheTerminalWhatNamesSay(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root, dir := filepath.Join(t.TempDir(), "root"), filepath.Join(t.TempDir(), hostile)
		must(t, os.Mkdir(dir, 0o755))
		escaped := `"x\u001b[31m\u009b31m\u202e"`
		file := manifestFile(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop}\nspec:\n  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}]\n  volumes: [{name: v, hostPath: {path: "+escaped+"}}, {name: w, hostPath: {path: \"/tmp\\x1b[31m/\\u202e\\u0085\"}}]\n")
		linked := filepath.Join(dir, "pod.yaml")
		must(t, os.WriteFile(linked, []byte(podNamed("a", disk)), 0o600))
		// A volume that podvol has not made, of that name.
		stray := filepath.Join(root, "pods", hostile, "volumes", "kubernetes.io~empty-dir", hostile)
		must(t, os.MkdirAll(stray, 0o750))
		must(t, os.WriteFile(filepath.Join(stray, hostile), nil, 0o600))
		all := [][]string{
			{"mount", "-f", linked, "--node", "n"}, {"status"}, {"status", "-o", "json"}, {"status", "-o", "yaml"},
			{"mount", "--fake", "-f", file}, {"mount", "-f", file}, {"mount", "-f", file, "-o", "json"}, {"mount", "-f", filepath.Join(dir, "none")}, {"mount", "-f", dir, "--fake"},
			{"unmount", "--pod", "shop/" + hostile}, {"unmount", "--uid", hostile}, {"unmount", "-f", filepath.Join(dir, hostile)}, {"unmount", "--all"},
			{"fsck"}, {"fsck", "-o", "json"}, {"fsck", "-o", "yaml"}, {"fsck", "--repair"},
			{"run", "-f", linked, "--container", hostile, "--", "true"}, {"run", "-f", linked, "--rootfs", dir, "--", "true"}, {"run", "-f", linked, "--", hostile},
			{"run-node", "-f", filepath.Join(dir, "none")}, {"run-node", "-f", linked}, {"run-node", "-f", dir, "--node", hostile, "--metrics-addr", hostile},
			{"explain", hostile}, {"pvc", "describe", hostile}, {"pv", "describe", hostile}, {"pvc", hostile}, {"pvc", "-n", hostile}, {"pvc", "delete", "a/" + hostile}, {"pv", hostile}, {"pv", "delete", hostile}, {"pv", "release", hostile, "--yes"},
			{"discover", "--dir", dir, "--class", "disks"}, {"discover", "--dir", dir, "--class", hostile},
			{hostile}, {"mount", hostile}, {"mount", "--" + hostile}, {"status", "-o", hostile}, {"status", "--root-dir", linked},
		}
		for _, args := range all {
			if args[0] != hostile && !strings.HasPrefix(args[0], "discover") && len(args) < 3 || args[0] == "mount" && args[1] == "-f" || args[0] == "unmount" || args[0] == "fsck" || args[0] == "run" {
				args = append([]string{args[0], "--root-dir", root}, args[1:]...)
			}
			_, out, errOut := podvol(t, "", args...)
			assertPlain(t, strings.Join(args, " ")+": stdout", out)
			assertPlain(t, strings.Join(args, " ")+": stderr", errOut)
		}
	})
}

// A table is as wide as the terminal; a pipe, and -o wide, lose nothing.
func TestTablesFitTheTerminal(t *testing.T) {
	pod := strings.Repeat("a-long-name-", 5) + "0"
	file := manifestFile(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: "+pod+", namespace: shop}\nspec:\n  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}, {name: w, mountPath: /w}]}]\n  volumes: [{name: v, emptyDir: {}}, {name: w, nfs: {server: 10.0.0.1, path: /exports/"+strings.Repeat("容量", 20)+"}}]\n")
	shown := func(format string) []string {
		return at80Columns(t, func(program *os.File) {
			if code := run(t.Context(), []string{"mount", "--fake", "-f", file, "-o", format}, streams{in: strings.NewReader(""), out: program, err: io.Discard}); code != exitOK {
				t.Errorf("-o %s: exit code %d", format, code)
			}
		})
	}
	lines := shown("table")
	if len(lines) != 3 || strings.Fields(lines[0])[3] != "SOURCE" {
		t.Fatalf("%q", lines)
	}
	for _, line := range lines {
		if table.Width(line) > 80 {
			t.Errorf("%d columns: %s", table.Width(line), line)
		}
	}
	if !strings.HasPrefix(lines[1], "shop/a-") || !strings.Contains(lines[1], "…") {
		t.Errorf("the pod is %q", lines[1])
	}
	piped, _ := mustPodvol(t, exitOK, "mount", "--fake", "-f", file)
	for _, text := range []string{strings.Join(shown("wide"), "\n"), piped} {
		if strings.Contains(text, "…") || strings.Count(text, "shop/"+pod) < 2 || !strings.Contains(text, strings.Repeat("容量", 20)) {
			t.Errorf("something is not whole:\n%s", text)
		}
	}
}

// at80Columns returns the lines that something prints at a terminal of 80 columns.
func at80Columns(t *testing.T, print func(program *os.File)) []string {
	typist, program := terminal.Open(t)
	terminal.Resize(t, program, 80)
	read := make(chan string, 1)
	go func() {
		text, _ := io.ReadAll(typist) // it ends with an error once the program's side is closed
		read <- string(text)
	}()
	print(program)
	must(t, program.Close())
	return strings.Split(strings.TrimSpace(<-read), "\r\n")
}

// A warning, a reason and an error go on below themselves; a pipe gets each in one line.
func TestSentencesFitTheTerminal(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: shop}\nspec: {containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}], volumes: [{name: v, %s}]}\n"
		file := manifestFile(t, fmt.Sprintf(pod, "limited", "emptyDir: {sizeLimit: 1Gi}"))
		claimed := manifestFile(t, fmt.Sprintf(pod, "a", "persistentVolumeClaim: {claimName: d}")+"---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: d, namespace: shop}\nspec: {accessModes: [ReadWriteOnce], storageClassName: fast, resources: {requests: {storage: 1Gi}}}\n")
		mustPodvol(t, exitFailed, "mount", "--root-dir", root, "-f", claimed, "--timeout", "10s")
		for sentence, args := range map[string][]string{
			"is not enforced:":   {"mount", "--fake", "-f", file},
			"the claim is not":   {"pvc", "-A", "--root-dir", root},
			"the manifests have": {"mount", "--fake", "-f", file, "--pod", "shop/" + strings.Repeat("no-such-", 10)},
		} {
			lines := at80Columns(t, func(program *os.File) {
				run(t.Context(), args, streams{in: strings.NewReader(""), out: program, err: program})
			})
			if !strings.Contains(strings.Join(lines, " "), sentence) {
				t.Errorf("%v: no sentence %q in %q", args, sentence, lines)
			}
			for i, line := range lines {
				if table.Width(line) > 80 && strings.Contains(strings.TrimSpace(line), " ") {
					t.Errorf("%v: line %d has %d columns: %s", args, i, table.Width(line), line)
				}
			}
			if _, out, errOut := podvol(t, "", args...); strings.Contains(out+errOut, "\n    ") {
				t.Errorf("%v: a pipe gets broken lines:\n%s%s", args, out, errOut)
			}
		}
	})
}
