package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/nstest"
)

// nodeTest is a podvol run-node that runs, as its user sees it.
type nodeTest struct {
	t    *testing.T
	dir  string // of manifests
	root string
	rows chan row
	// passed are rows that came while another one was waited for.
	passed []row
	says   chan string
	stop   func() (code int)
}

const patience = 30 * time.Second

// runInProcess runs the command in this process.
func runInProcess(t *testing.T, dir, root string, args ...string) *nodeTest {
	t.Helper()
	outR, outW := io.Pipe()
	errR, errW := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan int, 1)
	go func() {
		code := run(ctx, runNodeArgs(dir, root, args), streams{in: strings.NewReader(""), out: outW, err: errW})
		outW.Close()
		errW.Close()
		ended <- code
	}()
	return follow(t, dir, root, outR, errR, cancel, func() int { return <-ended })
}

// runProcess runs the command as a process of its own, which SIGTERM stops.
func runProcess(t *testing.T, dir, root string, args ...string) *nodeTest {
	t.Helper()
	c := exec.Command("/proc/self/exe", runNodeArgs(dir, root, args)...)
	c.Env = append(os.Environ(), mainVar+"=1")
	out, outErr := c.StdoutPipe()
	errs, errsErr := c.StderrPipe()
	if err := errors.Join(outErr, errsErr, c.Start()); err != nil {
		t.Fatal(err)
	}
	return follow(t, dir, root, out, errs, func() { _ = c.Process.Signal(syscall.SIGTERM) }, func() int {
		_ = c.Wait() // the code says it
		return c.ProcessState.ExitCode()
	})
}

func runNodeArgs(dir, root string, args []string) []string {
	return append([]string{"run-node", "-f", dir, "--root-dir", root, "--node", "here", "-o", "json"}, args...)
}

func follow(t *testing.T, dir, root string, out, errs io.Reader, cancel func(), wait func() int) *nodeTest {
	n := &nodeTest{t: t, dir: dir, root: root, rows: make(chan row, 1000), says: make(chan string, 1000)}
	read := make(chan struct{}, 2)
	go func() {
		defer func() { close(n.rows); read <- struct{}{} }()
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var r row
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				t.Errorf("%v: %s", err, lines.Text())
			}
			n.rows <- r
		}
	}()
	go func() {
		defer func() { close(n.says); read <- struct{}{} }()
		for lines := bufio.NewScanner(errs); lines.Scan(); {
			n.says <- lines.Text()
		}
	}()
	code, stopped := 0, false
	n.stop = func() int {
		if !stopped {
			stopped = true
			cancel()
			<-read
			<-read
			code = wait()
		}
		return code
	}
	t.Cleanup(func() { n.stop() })
	return n
}

// row waits for the row of a volume in a state, and returns it.
func (n *nodeTest) row(volume, state string) row {
	n.t.Helper()
	late := time.After(patience)
	for {
		select {
		case r, ok := <-n.rows:
			if !ok {
				n.t.Fatalf("it ended before volume %s was %s", volume, state)
			}
			if r.Volume == volume && r.State == state {
				return r
			}
			n.passed = append(n.passed, r)
		case <-late:
			n.t.Fatalf("volume %s was not %s in %v; it said %v", volume, state, patience, n.heard())
		}
	}
}

// hears waits until standard error has a line with this text.
func (n *nodeTest) hears(text string) string {
	n.t.Helper()
	late := time.After(patience)
	for {
		select {
		case line, ok := <-n.says:
			if !ok {
				n.t.Fatalf("it ended and did not say %q", text)
			}
			if strings.Contains(line, text) {
				return line
			}
		case <-late:
			n.t.Fatalf("it did not say %q in %v", text, patience)
		}
	}
}

// heard drains what was said and not listened to.
func (n *nodeTest) heard() (lines []string) {
	for {
		select {
		case line, ok := <-n.says:
			if !ok {
				return lines
			}
			lines = append(lines, line)
		default:
			return lines
		}
	}
}

// rest returns the rows that nobody has waited for, once the command has ended.
func (n *nodeTest) rest() (rows []row) {
	rows = n.passed
	for r := range n.rows {
		rows = append(rows, r)
	}
	return rows
}

// put writes a file as careful editors do: aside, then renamed.
func (n *nodeTest) put(name, text string) {
	n.t.Helper()
	putManifest(n.t, n.dir, name, text)
}

func putManifest(t *testing.T, dir, name, text string) {
	t.Helper()
	temp := filepath.Join(dir, "."+name+".new")
	if err := errors.Join(os.WriteFile(temp, []byte(text), 0o600), os.Rename(temp, filepath.Join(dir, name))); err != nil {
		t.Fatal(err)
	}
}

func (n *nodeTest) remove(name string) {
	n.t.Helper()
	if err := os.Remove(filepath.Join(n.dir, name)); err != nil {
		n.t.Fatal(err)
	}
}

// content waits until a file of a volume has this content.
func content(t *testing.T, path, want string) {
	t.Helper()
	w, err := watchDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	late := time.After(patience)
	for {
		got, err := os.ReadFile(path)
		if err == nil && string(got) == want {
			return
		}
		select {
		case <-w.changed:
		case <-late:
			t.Fatalf("%s has %q, %v; want %q", path, got, err, want)
		}
	}
}

func podNamed(name, volumes string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", namespace: shop}\nspec:\n  containers: [{name: c, image: i}]\n  volumes: [" + volumes + "]\n"
}

func configMapWith(value string) string {
	return strings.Replace(configMap, "{k: v}", "{k: "+value+"}", 1)
}

func leaks(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) })
}

func TestRunNodeFollowsItsDirectory(t *testing.T) {
	leaks(t)
	n := runInProcess(t, t.TempDir(), filepath.Join(t.TempDir(), "root"), "--fake")
	n.hears("pods: 0, volumes: 0")
	n.put("a.yaml", podNamed("a", "{name: scratch, emptyDir: {}}"))
	n.row("scratch", "mounted")

	// Its config map comes later, from a file of its own: no pause is waited for.
	n.put("b.json", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b","namespace":"shop"},"spec":{"containers":[{"name":"c","image":"i"}],`+
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
		"invalid":    {podNamed("a", "{name: one, emptyDir: {}, hostPath: {path: /etc}}"), "hostPath"},
		"empty":      {"", "there is no manifest in it"},
		"its secret": {"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {k: hunter2hunter2}\nx: y\n", "a.yaml"},
	} {
		n.put("a.yaml", tc.text)
		n.hears(tc.says)
		n.put("a.yaml", tc.text) // no news
		n.put("z.yaml", podNamed("z", "{name: other, emptyDir: {}}"))
		n.row("other", "mounted")
		n.remove("z.yaml")
		n.row("other", "unmounted")
		for _, line := range n.heard() {
			if strings.Contains(line, "last good version") && strings.Contains(line, tc.says) || strings.Contains(line, "hunter2") {
				t.Errorf("%s: it also said %q", name, line)
			}
		}
		n.put("a.yaml", podNamed("a", "{name: one, emptyDir: {}}"))
		n.hears("a.yaml is good again")
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
	if err := os.Rename(a, a+"~"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(a, []byte(podNamed("a", "{name: one, emptyDir: {}}, {name: two, emptyDir: {}}")), 0o600); err != nil {
		t.Fatal(err)
	}
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
		t.Errorf("row %+v", r)
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

func TestRunNodeServesMetricsAndExplains(t *testing.T) {
	leaks(t)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	n := runInProcess(t, t.TempDir(), filepath.Join(t.TempDir(), "root"), "--fake", "--metrics-addr", "0")
	_, url, _ := strings.Cut(n.hears("metrics are at "), "metrics are at ")
	url, _, _ = strings.Cut(url, "/metrics")
	if !strings.HasPrefix(url, "http://127.0.0.1:") {
		t.Errorf("it listens at %s", url)
	}
	n.put("a.yaml", podNamed("a", "{name: one, emptyDir: {}}, {name: bad, configMap: {name: missing}}"))
	n.row("bad", "failed")
	n.put("b.yaml", podNamed("b", "{name: two, emptyDir: {}}"))
	n.row("two", "mounted")
	n.remove("b.yaml")
	n.row("two", "unmounted")

	var rows []struct {
		Namespace, Pod, PodUID, Volume, Plugin, State, Cause, Error string
		Wanted                                                      bool
		Since, NextRetry                                            time.Time
		DurationSeconds                                             float64
		Failures                                                    int
	}
	if err := json.Unmarshal(get(t, url+"/explain"), &rows); err != nil || len(rows) != 2 {
		t.Fatalf("%v, %+v", err, rows)
	}
	if r := rows[0]; r.Volume != "bad" || r.Cause != "NotFound" || r.Failures < 1 || r.NextRetry.IsZero() || !strings.Contains(r.Error, "shop/missing") {
		t.Errorf("row %+v", r)
	}
	if r := rows[1]; r.Namespace != "shop" || r.Pod != "a" || r.Volume != "one" || r.State != "mounted" || !r.Wanted || r.Since.IsZero() || r.DurationSeconds <= 0 || r.Error != "" {
		t.Errorf("row %+v", r)
	}
	if got := string(get(t, url+"/healthz")); got != "ok\n" {
		t.Errorf("/healthz: %q", got)
	}

	n.put("c.yaml", podNamed("c", "{name: disk, persistentVolumeClaim: {claimName: d}}")+`---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: d, namespace: shop}
spec: {storageClassName: "", accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv}
spec: {storageClassName: "", accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, nfs: {server: 10.244.1.4, path: /}}
`)
	n.row("disk", "mounted")
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(get(t, url+"/metrics"))))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"capacity_bytes", "available_bytes", "used_bytes"} {
		if got := metricValue(t, families["kubelet_volume_stats_"+name], map[string]string{"namespace": "shop", "persistentvolumeclaim": "d"}); got < 0 {
			t.Errorf("%s is %v", name, got)
		}
	}
	for _, tc := range []struct {
		name string
		with map[string]string
		want float64
	}{
		{"volume_manager_total_volumes", map[string]string{"plugin_name": "kubernetes.io/empty-dir", "state": "desired_state_of_world"}, 1},
		{"volume_manager_total_volumes", map[string]string{"plugin_name": "kubernetes.io/empty-dir", "state": "actual_state_of_world"}, 1},
		{"volume_manager_total_volumes", map[string]string{"plugin_name": "kubernetes.io/configmap", "state": "desired_state_of_world"}, 1},
		{"storage_operation_duration_seconds", map[string]string{"volume_plugin": "kubernetes.io/empty-dir", "operation_name": "volume_mount", "status": "success", "migrated": "false"}, 2},
		{"storage_operation_duration_seconds", map[string]string{"volume_plugin": "kubernetes.io/empty-dir", "operation_name": "volume_unmount", "status": "success", "migrated": "false"}, 1},
		{"volume_operation_total_seconds", map[string]string{"plugin_name": "kubernetes.io/empty-dir", "operation_name": "volume_mount"}, 2},
		{"reconstruct_volume_operations_total", nil, 0},
		{"reconstruct_volume_operations_errors_total", nil, 0},
		{"force_cleaned_failed_volume_operations_total", nil, 0},
		{"force_cleaned_failed_volume_operation_errors_total", nil, 0},
	} {
		if got := metricValue(t, families[tc.name], tc.with); got != tc.want {
			t.Errorf("%s%v is %v, want %v", tc.name, tc.with, got, tc.want)
		}
	}
	if got := metricValue(t, families["storage_operation_duration_seconds"], map[string]string{
		"volume_plugin": "kubernetes.io/configmap", "operation_name": "volume_mount", "status": "fail-unknown", "migrated": "false"}); got < 1 {
		t.Errorf("%v failures are counted", got)
	}
	n.stop()
}

func get(t *testing.T, url string) []byte {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", url, response.Status, err)
	}
	return body
}

// metricValue is a gauge's or counter's value, or the count of a histogram.
func metricValue(t *testing.T, family *dto.MetricFamily, with map[string]string) float64 {
	t.Helper()
	for _, m := range family.GetMetric() {
		if len(m.GetLabel()) == len(with) && !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return with[l.GetName()] != l.GetValue() }) {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	t.Errorf("there is no metric %s with %v", family.GetName(), with)
	return -1
}

func TestMetricsAddress(t *testing.T) {
	for value, want := range map[string]string{
		"9090": "127.0.0.1:9090", ":9090": "127.0.0.1:9090", "0.0.0.0:9090": "0.0.0.0:9090", "[::1]:9090": "[::1]:9090",
		"localhost:0": "localhost:0", "http": "", "1:2:3": "", "localhost:": "", "70000": "",
	} {
		got, err := listenAddress(value)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v; want %q", value, got, err, want)
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
		"address in use": {"run-node", "--fake", "-f", dir, "--metrics-addr", "256.0.0.1:1"},
	} {
		code, out, errOut := podvol(t, "", args...)
		if code != exitUsage || out != "" || !strings.HasPrefix(errOut, "podvol: ") {
			t.Errorf("%s: exit code %d, %s, %s", name, code, out, errOut)
		}
	}
}

func TestRunNodeOnThisKernel(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir, root, share := t.TempDir(), filepath.Join(t.TempDir(), "root"), t.TempDir()
		n := runProcess(t, dir, root)
		n.put("config.yaml", configMapWith("one")+"---\napiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: shop}\nstringData: {password: old}\n")
		pod := podNamed("web", "{name: config, configMap: {name: c}}, {name: login, secret: {secretName: s}}, {name: disk, emptyDir: {}}, "+
			"{name: memory, emptyDir: {medium: Memory}}, {name: share, hostPath: {path: "+share+"}}")
		n.put("web.yaml", pod)
		paths := make(map[string]string)
		for len(paths) < 5 {
			r := <-n.rows
			if r.State == "mounted" {
				paths[r.Volume] = r.Path
			}
		}
		content(t, filepath.Join(paths["config"], "k"), "one")
		n.put("config.yaml", configMapWith("two")+"---\napiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: shop}\nstringData: {password: new}\n")
		content(t, filepath.Join(paths["config"], "k"), "two")
		content(t, filepath.Join(paths["login"], "password"), "new")
		kept := filepath.Join(paths["memory"], "kept")
		if err := os.WriteFile(kept, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}

		second := runProcess(t, dir, root)
		if line := second.hears("is in use by"); !strings.Contains(line, "process ") {
			t.Errorf("it said %q", line)
		}
		if code := second.stop(); code != exitFailed {
			t.Errorf("exit code %d", code)
		}

		if code := n.stop(); code != exitOK {
			t.Errorf("exit code %d", code)
		}
		before := mountsBelow(t, root)
		if len(before) != 2 { // the secret's tmpfs and the memory emptyDir's
			t.Errorf("mounts after SIGTERM: %v", before)
		}

		// A file that cannot be read at the start takes nothing away.
		putManifest(t, dir, "web.yaml", "{")
		n = runProcess(t, dir, root)
		n.hears("kept until every manifest has been read")
		n.put("web.yaml", pod)
		n.row("disk", "mounted")
		n.put("other.yaml", podNamed("other", "{name: more, emptyDir: {medium: Memory}}"))
		n.row("more", "mounted")
		if code := n.stop(); code != exitOK {
			t.Errorf("exit code %d", code)
		}
		if after := mountsBelow(t, root); len(after) != 3 || !contains(after, before) {
			t.Errorf("mounts before %v, after the restart %v", before, after)
		}
		content(t, kept, "x")

		// What left while nobody looked goes with the next start.
		if err := os.Remove(filepath.Join(dir, "other.yaml")); err != nil {
			t.Fatal(err)
		}
		n = runProcess(t, dir, root, "--unmount-on-exit")
		n.row("more", "unmounted")
		if code := n.stop(); code != exitOK {
			t.Errorf("exit code %d", code)
		}
		assertNothingMountedBelow(t, root)
		if pods, err := os.ReadDir(filepath.Join(root, "pods")); err == nil && len(pods) > 0 {
			t.Errorf("left: %v", tree(t, filepath.Join(root, "pods")))
		}
		if _, err := os.Stat(share); err != nil {
			t.Errorf("the host's directory: %v", err)
		}
	})
}

func mountsBelow(t *testing.T, dir string) (targets []string) {
	t.Helper()
	table, err := mount.KernelTable()
	if err != nil {
		t.Fatal(err)
	}
	all, err := table.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if strings.HasPrefix(e.Target, dir+"/") {
			targets = append(targets, e.Target)
		}
	}
	return targets
}

func contains(all, part []string) bool {
	return !slices.ContainsFunc(part, func(p string) bool { return !slices.Contains(all, p) })
}
