package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestRunNodeFollowsItsDirectory(t *testing.T) {
	leaks(t)
	n := runInProcess(t, t.TempDir(), filepath.Join(t.TempDir(), "root"), "--fake")
	n.hears("0 volumes of 0 pods")
	n.put("a.yaml", podNamed("a", "{name: scratch, emptyDir: {}}"))
	n.row("scratch", "mounted")

	// Its config map comes later, from a file of its own: no pause is waited for.
	n.put("b.json", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b","namespace":"shop"},"spec":{"containers":[{"name":"c","image":"i","volumeMounts":[{"name":"config","mountPath":"/config"}]}],`+
		`"volumes":[{"name":"config","configMap":{"name":"c"}}]}}`)
	if r := n.row("config", "failed"); !strings.Contains(r.Error, "ConfigMap shop/c") {
		t.Errorf("row %+v", r)
	}
	n.put("c.yml", configMap)
	n.row("config", "mounted")

	n.remove("a.yaml")
	if r := n.row("scratch", "unmounted"); r.Pod != "shop/a" {
		t.Errorf("row %+v", r)
	}
	if code := n.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if rows := n.rest(); len(rows) > 0 {
		t.Errorf("more happened: %+v", rows)
	}
}

func TestRunNodeKeepsTheLastGoodVersion(t *testing.T) {
	leaks(t)
	n := runInProcess(t, t.TempDir(), filepath.Join(t.TempDir(), "root"), "--fake")
	n.put("a.yaml", podNamed("a", "{name: one, emptyDir: {}}"))
	n.row("one", "mounted")
	for name, tc := range map[string]struct{ text, says string }{
		"not YAML":   {"{", "a.yaml"},
		"nonsense":   {withNFSOptions(podNamed("a", "{name: one, emptyDir: {}}"), "nosuch"), `no volume "nosuch"`},
		"invalid":    {podNamed("a", "{name: one, emptyDir: {}, hostPath: {path: /etc}}"), "hostPath"},
		"empty":      {"", "there is no manifest in it"},
		"its secret": {"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {k: hunter2hunter2}\nx: y\n", "a.yaml"},
	} {
		n.put("a.yaml", tc.text)
		n.hears(tc.says)
		n.put("a.yaml", tc.text) // no news
		n.put("z.yaml", podNamed("z", "{name: other, emptyDir: {}}"))
		n.row("other", "mounted")
		n.remove("z.yaml") // whatever it had may be written into the other file just now
		n.hears("kept while a.yaml is not: Pod shop/z")
		for _, line := range n.missed {
			if strings.Contains(line, "last good version") && strings.Contains(line, tc.says) || strings.Contains(line, "hunter2") {
				t.Errorf("%s: it also said %q", name, line)
			}
		}
		n.put("a.yaml", podNamed("a", "{name: one, emptyDir: {}}"))
		n.hears("a.yaml is good again")
		n.row("other", "unmounted")
		n.missed = nil
	}
	n.put("b.yaml", podNamed("a", "{name: two, emptyDir: {}}"))
	if line := n.hears("twice"); !strings.Contains(line, "b.yaml") || !strings.Contains(line, "a.yaml") {
		t.Errorf("it said %q", line)
	}
	n.remove("a.yaml") // now b.yaml's pod is the only one, and has other volumes
	n.row("one", "unmounted")
	n.row("two", "mounted")
	n.stop()
}

// A file that is being written, by whoever does not rename, is not read before
// it is closed, be its beginning a manifest already.
func TestRunNodeReadsNoHalfWrittenFile(t *testing.T) {
	leaks(t)
	n := runInProcess(t, t.TempDir(), filepath.Join(t.TempDir(), "root"), "--fake")
	text := podNamed("a", "{name: one, emptyDir: {}}") + "---\n"
	n.put("a.yaml", text+podNamed("b", "{name: two, emptyDir: {}}"))
	n.row("two", "mounted")
	f, err := os.OpenFile(filepath.Join(n.dir, "a.yaml"), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	n.put("c.yaml", podNamed("c", "{name: three, emptyDir: {}}")) // has the directory looked at
	n.row("three", "mounted")
	if _, err := f.WriteString(podNamed("b", "{name: two, emptyDir: {}}, {name: four, emptyDir: {}}")); err != nil {
		t.Fatal(err)
	}
	f.Close()
	n.row("four", "mounted")
	n.stop()
	for _, r := range n.rest() {
		if r.State != "mounted" {
			t.Errorf("row %+v", r)
		}
	}
	for _, line := range n.heard() {
		if strings.Contains(line, "a.yaml") {
			t.Errorf("it said %q", line)
		}
	}
}

// Editors move a file away before they write it anew; what is in its emptyDirs
// outlives that.
func TestRunNodeSurvivesMovesOfFiles(t *testing.T) {
	leaks(t)
	n := runInProcess(t, t.TempDir(), filepath.Join(t.TempDir(), "root"), "--fake")
	n.put("a.yaml", podNamed("a", "{name: one, emptyDir: {}}"))
	n.row("one", "mounted")
	a := filepath.Join(n.dir, "a.yaml")
	began := time.Now()
	if err := os.Rename(a, a+"~"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(a, []byte(podNamed("a", "{name: one, emptyDir: {}}, {name: two, emptyDir: {}}")), 0o600); err != nil {
		t.Fatal(err)
	}
	slow := time.Since(began) > afterGone/2 // a busy machine's, for which it may be gone
	n.row("two", "mounted")
	if err := os.Rename(a, filepath.Join(n.dir, "b.yaml")); err != nil { // the pods move with it
		t.Fatal(err)
	}
	n.put("c.yaml", podNamed("c", "{name: three, emptyDir: {}}"))
	n.row("three", "mounted")
	n.remove("c.yaml")
	n.row("three", "unmounted") // by now the old name counts as removed
	n.stop()
	for _, r := range n.rest() {
		if !slow {
			t.Errorf("row %+v", r)
		}
	}
}

func TestRunNodeOutlivesItsDirectory(t *testing.T) {
	leaks(t)
	parent := filepath.Join(t.TempDir(), "etc")
	dir := filepath.Join(parent, "manifests")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	n := runInProcess(t, dir, filepath.Join(t.TempDir(), "root"), "--fake")
	n.put("a.yaml", podNamed("a", "{name: one, emptyDir: {}}"))
	n.row("one", "mounted")
	for i, gone := range []string{dir, parent} {
		if err := os.Rename(gone, fmt.Sprintf("%s-%d", gone, i)); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			n.hears("all stays as it is")
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		n.put("a.yaml", podNamed("a", "{name: one, emptyDir: {}}")+"---\n"+podNamed("b", fmt.Sprintf("{name: more-%d, emptyDir: {}}", i)))
		n.row(fmt.Sprintf("more-%d", i), "mounted")
	}
	n.stop()
	for _, r := range n.rest() {
		if r.Volume == "one" {
			t.Errorf("row %+v", r)
		}
	}
}

// A pod that loses a volume, or has another source for one, is replaced.
func TestRunNodeReplacesPodsWithOtherVolumes(t *testing.T) {
	leaks(t)
	n := runInProcess(t, t.TempDir(), filepath.Join(t.TempDir(), "root"), "--fake")
	n.put("a.yaml", podNamed("a", "{name: one, hostPath: {path: /etc}}, {name: two, emptyDir: {}}"))
	n.row("two", "mounted")
	n.put("a.yaml", podNamed("a", "{name: one, hostPath: {path: /usr}}, {name: two, emptyDir: {}}"))
	n.row("one", "unmounted")
	if r := n.row("one", "mounted"); r.Source != "/usr" {
		t.Errorf("row %+v", r)
	}
	n.put("a.yaml", podNamed("a", "{name: one, hostPath: {path: /usr}}"))
	n.row("two", "unmounted")
	n.row("one", "mounted")
	n.stop()
}

func TestRunNodeBindsClaims(t *testing.T) {
	leaks(t)
	n := runInProcess(t, t.TempDir(), filepath.Join(t.TempDir(), "root"), "--fake")
	n.put("pod.yaml", podNamed("a", "{name: v, persistentVolumeClaim: {claimName: d}}")+claim)
	if r := n.row("v", "pending"); !strings.Contains(r.Error, "there is no PersistentVolume") {
		t.Errorf("row %+v", r)
	}
	n.put("pv.yaml", pvHead+"  hostPath: {path: /srv}\n")
	if r := n.row("v", "mounted"); r.Source != "/srv" {
		t.Errorf("row %+v", r)
	}
	// An edit of the claim does not undo its binding.
	n.put("pod.yaml", podNamed("a", "{name: v, persistentVolumeClaim: {claimName: d}}, {name: more, emptyDir: {}}")+
		strings.Replace(claim, "{name: d,", "{name: d, labels: {a: b},", 1))
	n.row("more", "mounted")
	n.stop()
	for _, r := range n.rest() {
		if r.State == "unmounted" {
			t.Errorf("row %+v", r)
		}
	}
}

func TestRunNodeUsageErrors(t *testing.T) {
	dir := t.TempDir()
	file := manifestFile(t, "")
	for name, args := range map[string][]string{
		"no directory":   {"run-node", "--fake"},
		"missing":        {"run-node", "--fake", "-f", filepath.Join(dir, "missing")},
		"a file":         {"run-node", "--fake", "-f", file},
		"output":         {"run-node", "--fake", "-f", dir, "-o", "yaml"},
		"address":        {"run-node", "--fake", "-f", dir, "--metrics-addr", "nowhere"},
		"trace file":     {"run-node", "--fake", "-f", dir, "--trace-file", "/dev/null"},
		"address in use": {"run-node", "--fake", "-f", dir, "--metrics-addr", "256.0.0.1:1"},
	} {
		code, out, errOut := podvol(t, "", args...)
		if code != exitUsage || out != "" || !strings.HasPrefix(errOut, "podvol: ") {
			t.Errorf("%s: exit code %d, %s, %s", name, code, out, errOut)
		}
	}
}
