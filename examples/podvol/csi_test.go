package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

const notes = "../../testdata/csi/notes.yaml"

// newDriver starts a driver, and returns it and its socket.
func newDriver(t *testing.T) (d *csitest.Driver, socket string) {
	t.Helper()
	return newDriverThat(t, func(*csitest.Config) {})
}

// newDriverThat is newDriver for another configuration.
func newDriverThat(t *testing.T, change func(*csitest.Config)) (d *csitest.Driver, socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	config := csitest.Config{Dir: t.TempDir(), Mounter: host.New(host.Config{}), CreateOnUse: true, Capabilities: csitest.AllCapabilities()}
	change(&config)
	d = csitest.New(config)
	if err := d.Start(socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if broken := d.Violations(); len(broken) > 0 {
			t.Errorf("rules of the specification were broken: %q", broken)
		}
	})
	return d, socket
}

// A driver without a name is asked for it once, and the command that undoes a mount names it:
// then the driver may be away.
func TestDriverIsAskedForItsName(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		driver, socket := newDriver(t)
		base, named := t.TempDir(), csitest.DefaultName+"="+socket
		manifest, err := filepath.Abs(notes)
		if err != nil {
			t.Fatal(err)
		}
		t.Chdir(filepath.Dir(socket))
		_, errOut := mustPodvol(t, exitUsage, "mount", "-f", manifest, "--root-dir", base, "--csi-driver", named, "--csi-driver", "./s")
		if !strings.Contains(errOut, "names driver "+csitest.DefaultName+" twice") {
			t.Errorf("two sockets of one name:\n%s", errOut)
		}
		driver.ResetCalls()
		_, errOut = mustPodvol(t, exitOK, "mount", "-f", manifest, "--root-dir", base, "--csi-driver", "./s")
		if !strings.Contains(errOut, "--csi-driver "+named) {
			t.Errorf("mount prints\n%s", errOut)
		}
		if asked := driver.CallsOf("GetPluginInfo"); len(asked) > 3 { // one for the name, and one each of what mounts and what makes volumes
			t.Errorf("the driver was asked for its name %d times", len(asked))
		}
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", base, "--csi-driver", socket)
		assertNothingMountedBelow(t, base)
	})
}

// From nothing to a file on a driver's volume, and back to nothing.
func TestRunOnADriversVolume(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		driver, socket := newDriver(t)
		base := t.TempDir()
		for n := 1; n <= 2; n++ {
			out, _ := mustPodvol(t, exitOK, "run", "-f", notes, "--root-dir", base, "--csi-driver", csitest.DefaultName+"="+socket,
				"--", "sh", "-c", "echo line >> /notes/log; cat /notes/log")
			if out != strings.Repeat("line\n", n) {
				t.Errorf("run %d prints %q", n, out)
			}
			assertNothingMountedBelow(t, base)
			if staged, published := driver.Staged(), driver.Published(); len(staged)+len(published) > 0 {
				t.Errorf("left: staged %v, published %v", staged, published)
			}
		}
	})
}

// Disks of types that Kubernetes had code for are those of their driver, which the command line
// names: inline, and by a claim.
func TestRunOnInTreeDisks(t *testing.T) {
	const inTree = "../../testdata/csi/in-tree.yaml"
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		driver, socket := newDriverThat(t, func(c *csitest.Config) { c.Name = "pd.csi.storage.gke.io" })
		base := t.TempDir()
		_, errOut := mustPodvol(t, exitFailed, "mount", "-f", inTree, "--root-dir", base, "--timeout", "1s")
		if !strings.Contains(errOut, "gcePersistentDisk is not supported") || !strings.Contains(errOut, "--csi-driver") {
			t.Errorf("without a driver:\n%s", errOut)
		}
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", base)
		for n := 1; n <= 2; n++ {
			out, _ := mustPodvol(t, exitOK, "run", "-f", inTree, "--root-dir", base, "--csi-driver", socket,
				"--", "sh", "-c", "echo line | tee -a /ledger/log >> /archive/log; cat /ledger/log /archive/log")
			if out != strings.Repeat("line\n", 2*n) {
				t.Errorf("run %d prints %q", n, out)
			}
			assertNothingMountedBelow(t, base)
		}
		ids, err := driver.Volumes()
		if want := []string{"projects/UNSPECIFIED/zones/UNSPECIFIED/disks/archive-disk", "projects/UNSPECIFIED/zones/us-east1-b/disks/ledger-disk"}; err != nil || !slices.Equal(slices.Sorted(slices.Values(ids)), want) {
			t.Errorf("the driver's volumes are %q, %v", ids, err)
		}
		if staged, published := driver.Staged(), driver.Published(); len(staged)+len(published) > 0 {
			t.Errorf("left: staged %v, published %v", staged, published)
		}
	})
}

func TestMountAndUnmountADriversVolume(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		driver, socket := newDriver(t)
		root := t.TempDir()
		flag := "--csi-driver=" + csitest.DefaultName + "=" + socket
		_, errOut := mustPodvol(t, exitFailed, "mount", "-f", notes, "--root-dir", root, "--timeout", "1s")
		if !strings.Contains(errOut, "csi") {
			t.Errorf("without a driver:\n%s", errOut)
		}
		out, errOut := mustPodvol(t, exitOK, "mount", "-f", notes, "--root-dir", root, flag)
		if !strings.Contains(out, "mounted") || len(driver.Published()) != 1 {
			t.Errorf("published %v:\n%s", driver.Published(), out)
		}
		if !strings.Contains(errOut, "--csi-driver "+csitest.DefaultName+"="+socket) {
			t.Errorf("the command that unmounts lacks the driver:\n%s", errOut)
		}
		mustPodvol(t, exitOK, "fsck", "--root-dir", root, flag)
		mustPodvol(t, exitOK, "fsck", "--root-dir", root, "--csi-driver", csitest.DefaultName+"=unix://"+socket)
		mustPodvol(t, exitOK, "fsck", "--root-dir", root, "--csi-driver", "unix:"+socket)
		missing := "is of CSI driver " + csitest.DefaultName + ", and no CSI plugin is registered: give --csi-driver " + csitest.DefaultName + "=SOCKET or --csi-registry DIR"
		out, errOut = mustPodvol(t, exitFailed, "fsck", "--root-dir", root)
		if strings.Contains(out, "is no volume") || !strings.Contains(out, "perhaps for volume notes of pod default/notes") || !strings.Contains(out, "advice: volume notes of pod default/notes "+missing) || errOut != "" {
			t.Errorf("fsck without the driver:\n%s%s", out, errOut)
		}
		if _, errOut := mustPodvol(t, exitFailed, "unmount", "--all", "--root-dir", root); !strings.Contains(errOut, missing) {
			t.Errorf("unmount without the driver:\n%s", errOut)
		}
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root, flag)
		assertNothingMountedBelow(t, root)
		// The same by its own registration, which is not waited for.
		registry := filepath.Join(filepath.Dir(socket), "registry")
		registrar := &csitest.Registrar{Name: csitest.DefaultName, Endpoint: socket}
		must(t, os.Mkdir(registry, 0o700))
		must(t, registrar.Start(filepath.Join(registry, "r.sock")))
		defer registrar.Kill()
		mustPodvol(t, exitOK, "mount", "-f", notes, "--root-dir", root, "--csi-registry", registry)
		mustPodvol(t, exitOK, "fsck", "--root-dir", root, "--csi-registry", registry)
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root, "--csi-registry", registry)
		assertNothingMountedBelow(t, root)
		if len(driver.Staged())+len(driver.Published()) > 0 {
			t.Error("the driver has something left")
		}
	})
}

// A volume that is mounted below one root directory is not staged below another meanwhile.
func TestADriversVolumeIsUsedBelowOneRootDirectory(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		driver, socket := newDriver(t)
		root, other := t.TempDir(), t.TempDir()
		flag := "--csi-driver=" + csitest.DefaultName + "=" + socket
		run := []string{"run", "-f", notes, "--root-dir", other, "--timeout", "2s", flag, "--", "true"}
		mustPodvol(t, exitOK, "mount", "-f", notes, "--root-dir", root, flag)
		_, errOut := mustPodvol(t, exitRunFailed, run...)
		if !strings.Contains(errOut, "is staged at "+root) || !strings.Contains(errOut, "let all its pods use that root directory") {
			t.Errorf("the second use says:\n%s", errOut)
		}
		assertNothingMountedBelow(t, other)
		if staged := driver.Staged(); len(staged) != 1 {
			t.Errorf("staged: %v", staged)
		}
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root, flag)
		mustPodvol(t, exitOK, run...)
		assertNothingMountedBelow(t, root)
	})
}

// The calls of drivers are measured under the kubelet's name.
func TestRunNodeMeasuresCallsOfDrivers(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		t.Cleanup(http.DefaultClient.CloseIdleConnections)
		_, socket := newDriver(t)
		n := runInProcess(t, t.TempDir(), t.TempDir(), "--csi-driver", csitest.DefaultName+"="+socket, "--metrics-addr", "0")
		_, url, _ := strings.Cut(n.hears("metrics are at "), "metrics are at ")
		url, _, _ = strings.Cut(url, "/metrics")
		manifests, err := os.ReadFile(notes)
		if err != nil {
			t.Fatal(err)
		}
		n.put("notes.yaml", string(manifests))
		n.row("notes", "mounted")
		n.remove("notes.yaml")
		n.row("notes", "unmounted")
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(string(get(t, url+"/metrics"))))
		if err != nil {
			t.Fatal(err)
		}
		for _, method := range []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"} {
			if got := metricValue(t, families["csi_operations_seconds"], map[string]string{
				"driver_name": csitest.DefaultName, "method_name": "/csi.v1.Node/" + method, "grpc_status_code": "OK", "migrated": "false"}); got != 1 {
				t.Errorf("%s was measured %v times", method, got)
			}
		}
		n.stop()
	})
}

// A call that hangs is shown while it does, by a process of its own, and at the address.
func TestCallsUnderWayAreListed(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		t.Cleanup(http.DefaultClient.CloseIdleConnections)
		driver, socket := newDriver(t)
		hanging, release := make(chan struct{}, 1), make(chan struct{})
		driver.Inject(csitest.Fault{Match: csitest.Method("NodePublishVolume"), Nth: 1, Hook: func() { hanging <- struct{}{} }, Release: release})
		root := t.TempDir()
		n := runInProcess(t, t.TempDir(), root, "--csi-driver", csitest.DefaultName+"="+socket, "--metrics-addr", "0")
		_, url, _ := strings.Cut(n.hears("metrics are at "), "metrics are at ")
		url, _, _ = strings.Cut(url, "/metrics")
		manifests, err := os.ReadFile(notes)
		if err != nil {
			t.Fatal(err)
		}
		n.put("notes.yaml", string(manifests))
		<-hanging
		listed, _ := mustPodvol(t, exitOK, "csi", "--root-dir", root, "-o", "json")
		for from, text := range map[string]string{"the socket": listed, "the address": string(get(t, url+"/drivers"))} {
			var drivers []map[string]any
			if err := json.Unmarshal([]byte(text), &drivers); err != nil || len(drivers) != 1 {
				t.Fatalf("%s has %v:\n%s", from, err, text)
			}
			d := drivers[0]
			if d["driver"] != csitest.DefaultName || d["socket"] != socket || d["version"] != "1.0.0" || d["state"] != "answers" || d["knownBy"] != "podvol run-node" {
				t.Errorf("%s has the driver %v", from, d)
			}
			calls, _ := d["calls"].([]any)
			if len(calls) != 1 {
				t.Fatalf("%s has the calls %v", from, calls)
			}
			call, _ := calls[0].(map[string]any)
			if took, ok := call["seconds"].(float64); call["method"] != "NodePublishVolume" || call["volume"] != "notes-1" || !ok || took <= 0 {
				t.Errorf("%s has the call %v", from, call)
			}
		}
		table, _ := mustPodvol(t, exitOK, "csi", "--root-dir", root, "--csi-driver", socket)
		for _, want := range []string{"CALL ", "NodePublishVolume", "notes-1", "podvol run-node", "podvol csi"} {
			if !strings.Contains(table, want) {
				t.Errorf("%q is not in\n%s", want, table)
			}
		}
		close(release)
		n.row("notes", "mounted")
		n.remove("notes.yaml")
		n.row("notes", "unmounted")
		n.stop()
		_, errOut := mustPodvol(t, exitUsage, "csi", "--root-dir", root)
		if !strings.Contains(errOut, root+": no podvol run-node keeps it") {
			t.Errorf("after its end:\n%s", errOut)
		}
	})
}

func TestListDrivers(t *testing.T) {
	driver, socket := newDriver(t)
	registry := filepath.Join(filepath.Dir(socket), "registry")
	if err := os.Mkdir(registry, 0o750); err != nil {
		t.Fatal(err)
	}
	for format, want := range map[string]string{"table": "", "json": "[]\n", "yaml": "[]\n"} {
		out, errOut := mustPodvol(t, exitFailed, "csi", "--csi-registry", registry, "-o", format)
		if out != want || !strings.Contains(errOut, "no driver is registered in "+registry+": start a driver") {
			t.Errorf("of an empty registry: %q\n%s", out, errOut)
		}
	}
	registrar := &csitest.Registrar{Name: csitest.DefaultName, Endpoint: socket}
	if err := registrar.Start(filepath.Join(registry, "r.sock")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(registrar.Kill)
	for _, flag := range []string{"--csi-driver=" + csitest.DefaultName + "=" + socket, "--csi-driver=" + socket, "--csi-registry=" + registry} {
		out, _ := mustPodvol(t, exitOK, "csi", flag)
		for _, want := range []string{csitest.DefaultName, "1.0.0", "answers", "STAGE_UNSTAGE_VOLUME", socket} {
			if !strings.Contains(out, want) {
				t.Errorf("%q is not in\n%s", want, out)
			}
		}
	}
	if statuses := registrar.Statuses(); len(statuses) > 0 {
		t.Errorf("the registrar was told %q", statuses)
	}
	driver.Kill()
	out, errOut := mustPodvol(t, exitFailed, "csi", "--csi-driver="+csitest.DefaultName+"="+socket)
	if !strings.Contains(out, "silent") || !strings.Contains(errOut, "refused") {
		t.Errorf("of a dead driver:\n%s%s", out, errOut)
	}
	_, errOut = mustPodvol(t, exitFailed, "csi", "--csi-driver="+socket)
	if !strings.Contains(errOut, socket) || !strings.Contains(errOut, "give its name with the socket") {
		t.Errorf("of a dead driver without a name:\n%s", errOut)
	}
	// A socket that is no registrar's, in a registry that is everybody's.
	junk, err := net.Listen("unix", filepath.Join(registry, "junk.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { junk.Close() })
	go func() {
		for conn, err := junk.Accept(); err == nil; conn, err = junk.Accept() {
			fmt.Fprintln(conn, "hello")
			conn.Close()
		}
	}()
	if err := errors.Join(os.Chmod(filepath.Join(registry, "junk.sock"), 0o700), os.Chmod(registry, 0o777)); err != nil {
		t.Fatal(err)
	}
	_, errOut = mustPodvol(t, exitFailed, "csi", "--csi-registry="+registry)
	for _, want := range []string{"junk.sock nothing answers that registers drivers", "remove the socket", "other users may change the registry", "chmod go-w"} {
		if !strings.Contains(errOut, want) {
			t.Errorf("%q is not in\n%s", want, errOut)
		}
	}
}

// A driver that run-node has not called yet, and that is not there, is told of.
func TestListADriverThatIsNotThere(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		t.Cleanup(http.DefaultClient.CloseIdleConnections)
		root, socket := t.TempDir(), filepath.Join(t.TempDir(), "none.sock")
		n := runInProcess(t, t.TempDir(), root, "--csi-driver", "none.example.com="+socket, "--metrics-addr", "0")
		n.hears("metrics are at ")
		out, errOut := mustPodvol(t, exitFailed, "csi", "--root-dir", root)
		if !strings.Contains(out, "unused") || !strings.Contains(errOut, socket+" does not exist: start the driver") {
			t.Errorf("csi prints\n%s%s", out, errOut)
		}
		n.stop()
	})
}

func TestCSIFlags(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"csi", "name the drivers"},
		{"csi -o xml --csi-driver a=/s", "must be table, wide, json or yaml"},
		{"csi --csi-driver a", "NAME=SOCKET"},
		{"csi --csi-driver =/s", "NAME=SOCKET"},
		{"csi --csi-driver a=", "NAME=SOCKET"},
		{"csi --csi-driver a=/s --csi-driver a=/t", "twice"},
		{"csi --csi-driver a/b=/s", `"a/b" is no name of a driver`},
		{"csi --csi-driver a/b=/s", "--csi-driver"},
		{"csi --csi-driver a=unix:relative", "absolute path"},
		{"csi --csi-driver tcp://127.0.0.1:10000", "Unix socket only"},
		{"csi --csi-driver a=tcp://127.0.0.1:10000", "Unix socket only"},
		{"mount --fake -f " + notes + " --csi-driver a=/s", "mounts for real"},
	} {
		if _, errOut := mustPodvol(t, exitUsage, strings.Fields(tc.args)...); !strings.Contains(errOut, tc.want) {
			t.Errorf("%s: %s, want %q", tc.args, errOut, tc.want)
		}
	}
}
