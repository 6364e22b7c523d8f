package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moby/sys/mountinfo"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

const tour = "../../testdata/tour.yaml"

// assertNoRuns checks that a run has left nothing: no mount, and no file below
// its base.
func assertNoRuns(t *testing.T, base string) {
	t.Helper()
	assertNothingMountedBelow(t, base)
	if entries, err := os.ReadDir(base); err == nil && len(entries) > 0 {
		t.Errorf("left: %v", tree(t, base))
	}
}

func TestRunTour(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base := t.TempDir()
		out, _ := mustPodvol(t, exitOK, "run", "-f", tour, "--root-dir", base)
		for _, want := range []string{
			"I am tour of default on node ", "my colour is blue", "Hello from a config map", "only-an-example", `app="tour"`,
			"config is read-only", "/tour/config ro", "/tour/secret ro", "/tour/scratch rw",
		} {
			if !strings.Contains(out, want) {
				t.Errorf("%q is not in\n%s", want, out)
			}
		}
		assertNoRuns(t, base)
	})
}

const nestedRun = `
apiVersion: v1
kind: ConfigMap
metadata: {name: content}
data: {a: value-a, b: value-b}
---
apiVersion: v1
kind: Pod
metadata: {name: nested}
spec:
  initContainers:
  - name: prepare
    image: i
    volumeMounts: [{name: memory, mountPath: /prepared}]
  containers:
  - name: app
    image: i
    env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    volumeMounts:
    - {name: dir, mountPath: /dir}
    - {name: memory, mountPath: /dir/nested, mountPropagation: HostToContainer}
    - {name: content, mountPath: /dir/nested/content}
    - {name: memory, mountPath: /read-only, readOnly: true}
    - {name: memory, mountPath: /recursive, readOnly: true, recursiveReadOnly: Enabled}
    - {name: dir, mountPath: /part, subPath: logs/app}
    - {name: dir, mountPath: /expanded, subPathExpr: $(POD)-data}
    - {name: content, mountPath: /one/file.conf, subPath: b}
  volumes:
  - {name: dir, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory}}
  - {name: content, configMap: {name: content}}
`

// What the program sees is what its own mount table says.
func TestRunSeesItsMounts(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base, file := t.TempDir(), manifestFile(t, nestedRun)
		out, errOut := mustPodvol(t, exitOK, "run", "-f", file, "--root-dir", base, "--", "sh", "-ec", `
			cat /dir/nested/content/a /proc/self/mountinfo
			echo shared > /dir/nested/file
			cat /read-only/file /recursive/file >&2
			! touch /read-only/x 2> /dev/null
			! touch /dir/nested/content/x 2> /dev/null
			touch /dir/x
			echo log > /part/file
			cat /dir/logs/app/file /one/file.conf >&2
			ls -d /dir/nested-data >&2`)
		table, found := strings.CutPrefix(out, "value-a")
		if !found || errOut != "shared\nshared\nlog\nvalue-b/dir/nested-data\n" {
			t.Errorf("stdout %s\nstderr %s", out, errOut)
		}
		mounts, err := mountinfo.GetMountsFromReader(strings.NewReader(table), nil)
		if err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]struct{ options, fstype string }{
			"/dir": {"rw", ""}, "/dir/nested": {"rw", "tmpfs"}, "/dir/nested/content": {"ro", ""},
			"/read-only": {"ro", "tmpfs"}, "/recursive": {"ro", "tmpfs"},
			"/part": {"rw", ""}, "/expanded": {"rw", ""}, "/one/file.conf": {"ro", ""},
		} {
			i := slices.IndexFunc(mounts, func(m *mountinfo.Info) bool { return m.Mountpoint == path })
			if i < 0 {
				t.Errorf("%s is not in the program's mount table:\n%s", path, table)
				continue
			}
			m := mounts[i]
			if !strings.HasPrefix(m.Options, want.options) || (want.fstype != "" && m.FSType != want.fstype) || strings.Contains(m.Optional, "shared:") {
				t.Errorf("%+v, want %+v", m, want)
			}
		}
		out, _ = mustPodvol(t, exitOK, "run", "-f", file, "--root-dir", base, "--container", "prepare", "--", "sh", "-c", "ls -d /prepared /dir 2> /dev/null || true")
		if out != "/prepared\n" {
			t.Errorf("the init container sees %q", out)
		}
		assertNoRuns(t, base)
	})
}

func TestRunExitCodes(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base := t.TempDir()
		plain := filepath.Join(t.TempDir(), "plain")
		if err := os.WriteFile(plain, []byte("text"), 0o644); err != nil {
			t.Fatal(err)
		}
		missing := manifestFile(t, `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, configMap: {name: nix}}]
`)
		noEnv := manifestFile(t, `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: i, env: [{name: A, valueFrom: {secretKeyRef: {name: nix, key: k}}}]}]
`)
		tests := map[string]struct {
			code int
			says string
			args []string
		}{
			"success":           {0, "", []string{"-f", tour, "--", "true"}},
			"without dashes":    {7, "", []string{"-f", tour, "sh", "-c", "exit 7"}},
			"the program's":     {2, "", []string{"-f", tour, "--", "sh", "-c", "exit 2"}},
			"by signal":         {143, "", []string{"-f", tour, "--", "sh", "-c", "kill -TERM $$"}},
			"not found":         {127, "not found", []string{"-f", tour, "--", "no-such-program"}},
			"not executable":    {126, plain, []string{"-f", tour, "--", plain}},
			"a volume fails":    {exitRunFailed, "default/web v: ", []string{"-f", missing, "--", "echo", "run"}},
			"a variable fails":  {exitRunFailed, "Secret default/nix not found", []string{"-f", noEnv, "--", "echo", "run"}},
			"no manifest":       {exitRunFailed, "-f", []string{"--", "echo", "run"}},
			"unknown flag":      {exitRunFailed, "--bogus", []string{"--bogus"}},
			"no such container": {exitRunFailed, `no container "x"; it has guide`, []string{"-f", tour, "--container", "x"}},
			"no such pod":       {exitRunFailed, "a/b", []string{"-f", tour, "--pod", "a/b"}},
			"several pods":      {exitRunFailed, "shop/web-0, shop/web-1; choose one with --pod", []string{"-f", manifestFile(t, twoPods)}},
			"nothing to run":    {exitRunFailed, "say what to run", []string{"-f", manifestFile(t, twoPods), "--pod", "shop/web-1"}},
			"no such rootfs":    {exitRunFailed, "--rootfs /nonexistent", []string{"-f", tour, "--rootfs", "/nonexistent"}},
			"rootfs is a file":  {exitRunFailed, "no directory", []string{"-f", tour, "--rootfs", plain}},
			"timeout":           {exitRunFailed, "--timeout", []string{"-f", tour, "--timeout", "-1s"}},
			"no working dir":    {exitRunFailed, "/nonexistent", []string{"-f", manifestFile(t, strings.ReplaceAll(twoPods, "image: i", "image: i, workingDir: /nonexistent")), "--pod", "shop/web-0", "--", "echo", "run"}},
			"must not be root":  {exitRunFailed, "runAsNonRoot", []string{"-f", manifestFile(t, strings.ReplaceAll(twoPods, "image: i", "image: i, securityContext: {runAsNonRoot: true}")), "--pod", "shop/web-0", "--", "echo", "run"}},
		}
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				code, out, errOut := podvol(t, "", append([]string{"run", "--root-dir", base}, test.args...)...)
				if code != test.code || out != "" || !strings.Contains(errOut, test.says) || (test.says == "") != (errOut == "") {
					t.Errorf("exit code %d, want %d\nstdout: %s\nstderr: %s", code, test.code, out, errOut)
				}
				assertNoRuns(t, base)
			})
		}
	})
}

const twoPods = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  serviceName: web
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: c, image: i}]
`

func TestRunEnvironment(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		file := manifestFile(t, `
apiVersion: v1
kind: ConfigMap
metadata: {name: all}
data: {COLOUR: blue}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: shop}}
spec:
  nodeName: node1
  containers:
  - name: other
    image: i
  - name: app
    image: i
    workingDir: /
    command: [sh, -c, "env; echo cwd=$(pwd) arg=$0 $1", "$(GREETING)"]
    args: ["$$(GREETING)"]
    resources: {limits: {memory: 64Mi}}
    envFrom: [{configMapRef: {name: all}}]
    env:
    - {name: APP, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: MEMORY, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
    - {name: CPUS, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}
    - {name: GREETING, value: "hello $(APP)"}
    - {name: PODVOL_TEST_CALLERS, value: "container's"}
`)
		t.Cleanup(func() { os.Unsetenv("PODVOL_TEST_CALLERS"); os.Unsetenv("PODVOL_TEST_ONLY") })
		os.Setenv("PODVOL_TEST_CALLERS", "caller's")
		os.Setenv("PODVOL_TEST_ONLY", "caller's")
		base := t.TempDir()
		out, _ := mustPodvol(t, exitOK, "run", "-f", file, "--container", "app", "--root-dir", base)
		for _, want := range []string{
			"APP=shop", "COLOUR=blue", "MEMORY=64", "GREETING=hello shop", "PODVOL_TEST_CALLERS=container's", "PODVOL_TEST_ONLY=caller's",
			"cwd=/ arg=hello shop $(GREETING)",
		} {
			if !strings.Contains("\n"+out, "\n"+want+"\n") {
				t.Errorf("%q is not in\n%s", want, out)
			}
		}
		if n := strings.Count(out, "PODVOL_TEST_CALLERS="); n != 1 {
			t.Errorf("the variable is there %d times:\n%s", n, out)
		}
		if strings.Contains(out, "IP=\n") || strings.Contains(out, "CPUS=0") {
			t.Errorf("no address or processors:\n%s", out)
		}
		assertNoRuns(t, base)
	})
}

// busyboxRoot is a root directory with nothing but busybox, from the package
// busybox-static, in it.
func busyboxRoot(t *testing.T) string {
	t.Helper()
	testtool.Need(t, "busybox")
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	copyFile(t, busybox, filepath.Join(root, "bin", "busybox"), 0o755)
	for _, name := range []string{"sh", "env", "ls", "cat", "id", "pwd"} {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestRunInARootOfItsOwn(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base, rootfs := t.TempDir(), busyboxRoot(t)
		t.Cleanup(func() { os.Unsetenv("PODVOL_TEST_ONLY") })
		os.Setenv("PODVOL_TEST_ONLY", "caller's")
		out, _ := mustPodvol(t, exitOK, "run", "-f", tour, "--root-dir", base, "--rootfs", rootfs, "--", "sh", "-c", "env; pwd; ls / /tour; cat /tour/config/greeting")
		lines := strings.Split(out, "\n")
		for _, want := range []string{"PATH=" + sandbox.DefaultPath, "HOME=/root", "POD=tour", "COLOUR=blue", "/", "tour", "scratch", "Hello from a config map"} {
			if !slices.Contains(lines, want) {
				t.Errorf("%q is not a line of\n%s", want, out)
			}
		}
		if strings.Contains(out, "PODVOL_TEST") {
			t.Errorf("the caller's environment is there:\n%s", out)
		}
		assertNoRuns(t, base)
		if left, err := os.ReadDir(rootfs); err != nil || len(left) != 1 {
			t.Errorf("the root directory has %v, %v", left, err)
		}
	})
}

// Runs have a root directory each, and need not wait for one another.
func TestRunsGoSideBySide(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base, meet := t.TempDir(), t.TempDir()
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				// Each waits until it has seen all of them at work.
				script := fmt.Sprintf(`echo %d > /tour/scratch/file; touch %[2]s/%[1]d; until [ $(ls %[2]s | wc -l) = 4 ]; do :; done; cat /tour/scratch/file`, i, meet)
				code, out, errOut := podvol(t, "", "run", "-f", tour, "--root-dir", base, "--", "sh", "-c", script)
				if code != 0 || out != fmt.Sprintln(i) {
					t.Errorf("exit code %d\nstdout: %s\nstderr: %s", code, out, errOut)
				}
			})
		}
		all.Wait()
		assertNoRuns(t, base)
	})
}

// A claim that is bound for a run stays bound.
func TestRunBindsClaims(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		data := t.TempDir()
		text := `
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: ` + data + `}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: first}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: first}}]
`
		base, file := t.TempDir(), manifestFile(t, text)
		mustPodvol(t, exitOK, "run", "-f", file, "--root-dir", base, "--", "sh", "-c", "echo kept > /v/file")
		if got, err := os.ReadFile(filepath.Join(data, "file")); err != nil || string(got) != "kept\n" {
			t.Errorf("%q, %v", got, err)
		}
		other := manifestFile(t, strings.ReplaceAll(text, "first", "second"))
		_, errOut := mustPodvol(t, exitRunFailed, "run", "-f", other, "--root-dir", base, "--", "cat", "/v/file")
		if !strings.Contains(errOut, "first") {
			t.Errorf("the data is shown to another claim, or it is not said why not: %s", errOut)
		}
		out, _ := mustPodvol(t, exitOK, "run", "-f", file, "--root-dir", base, "--", "cat", "/v/file")
		if out != "kept\n" {
			t.Errorf("%q", out)
		}
		assertNothingMountedBelow(t, base)
		if runs, err := os.ReadDir(runsOf(base).Dir()); !os.IsNotExist(err) {
			t.Errorf("runs are left: %v, %v", runs, err)
		}
	})
}

// A pod that has nothing to run is refused in words that say what it lacks.
func TestChooseContainerOfPodsWithoutContainers(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	for _, name := range []string{"", "c"} {
		if _, err := chooseContainer(pod, name); err == nil || !strings.Contains(err.Error(), "pod shop/web has no containers, ") {
			t.Errorf("%q: %v", name, err)
		}
	}
	pod.Spec.InitContainers = []v1.Container{{Name: "first"}, {Name: "second"}}
	if _, err := chooseContainer(pod, ""); err == nil || !strings.Contains(err.Error(), "choose one with --container: first, second") {
		t.Error(err)
	}
	if _, err := chooseContainer(pod, "third"); err == nil || !strings.Contains(err.Error(), `no container "third"; it has first, second`) {
		t.Error(err)
	}
	if c, err := chooseContainer(pod, "second"); err != nil || c.Name != "second" {
		t.Errorf("%v, %v", c, err)
	}
}
