package pluginlist

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/podvol/podvol/examples/podvol/internal/ownplugins"
	"github.com/podvol/podvol/examples/podvol/internal/table"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/terminal"
	"github.com/podvol/podvol/volume"
)

// machine has files, by path, and nothing else.
func machine(t *testing.T, files map[string]string) Machine {
	t.Helper()
	dir := t.TempDir()
	for path, text := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	kernel := host.Config{FilesystemsFile: filepath.Join(dir, "filesystems"), ModulesDir: filepath.Join(dir, "modules")}
	return Machine{Kernel: kernel, ToolDirs: []string{filepath.Join(dir, "bin")}, LoadedDir: filepath.Join(dir, "loaded")}
}

func known(t *testing.T, m Machine) []Plugin {
	t.Helper()
	plugins, translator, err := ownplugins.Known()
	if err != nil {
		t.Fatal(err)
	}
	return Of(plugins, translator, m)
}

func find(t *testing.T, all []Plugin, name string) Plugin {
	t.Helper()
	i := slices.IndexFunc(all, func(p Plugin) bool { return p.Name == "kubernetes.io/"+name })
	if i < 0 {
		t.Fatalf("there is no %s", name)
	}
	return all[i]
}

func TestPluginsSayWhatTheyCan(t *testing.T) {
	all := known(t, machine(t, nil))
	for name, want := range map[string]string{
		"nfs": "provision", "csi": "attach block grow provision", "iscsi": "attach block grow", "host-path": "provision", "local-volume": "block grow", "secret": "",
	} {
		if got := strings.Join(find(t, all, name).Supports, " "); got != want {
			t.Errorf("%s supports %q, want %q", name, got, want)
		}
	}
	if got := find(t, all, "local-volume"); got.Inline != nil || !slices.Equal(got.PersistentVolume, []string{"local"}) || !slices.Equal(got.AccessModes, []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}) {
		t.Errorf("local: %+v", got)
	}
	if got := find(t, all, "csi"); !slices.Contains(got.Translated, "gcePersistentDisk") || !slices.Equal(got.Inline, []string{"csi"}) {
		t.Errorf("csi: %+v", got)
	}
}

// Each type of source of the API has a plugin, or is refused, or stands for another volume.
func TestNoTypeIsForgotten(t *testing.T) {
	taken := []string{"persistentVolumeClaim", "ephemeral"}
	for _, p := range known(t, machine(t, nil)) {
		taken = slices.Concat(taken, p.Inline, p.PersistentVolume, p.Translated)
	}
	refused := []string{"fc", "flocker", "gitRepo", "photonPersistentDisk", "quobyte", "scaleIO", "storageos"}
	for _, spec := range specs() {
		source := volume.SourceTypes(spec)[0]
		if slices.Contains(taken, source) == slices.Contains(refused, source) {
			t.Errorf("%s: taken %v", source, slices.Contains(taken, source))
		}
	}
}

func TestWhatAMachineLacks(t *testing.T) {
	for _, tc := range []struct {
		plugin string
		files  map[string]string
		lacks  string
	}{
		{"nfs", nil, "nfs"},
		{"nfs", map[string]string{"filesystems": "nodev\tnfs\nnodev\tnfs4\n"}, ""},
		{"nfs", map[string]string{"modules/modules.dep": "kernel/fs/nfs/nfs.ko.xz: kernel/net/sunrpc.ko.xz\n"}, ""},
		{"nfs", map[string]string{"modules/modules.builtin": "kernel/fs/nfs/nfs.ko\n"}, ""},
		{"iscsi", map[string]string{"bin/iscsiadm": "", "bin/fsck": ""}, "iscsi_tcp blkid"},
		{"iscsi", map[string]string{"bin/iscsiadm": "", "bin/fsck": "", "bin/blkid": "", "loaded/iscsi_tcp/state": ""}, ""},
		{"csi", nil, "driver?"},
		{"host-path", nil, ""},
	} {
		p := find(t, known(t, machine(t, tc.files)), tc.plugin)
		var lacks []string
		for _, n := range p.Needs {
			if n.Found == nil || !*n.Found {
				lacks = append(lacks, n.text())
			}
		}
		if got := strings.Join(lacks, " "); got != tc.lacks || p.Ready != (got == "" || got == "driver?") {
			t.Errorf("%s with %v lacks %q (ready %v), want %q", tc.plugin, tc.files, got, p.Ready, tc.lacks)
		}
	}
}

func TestFormats(t *testing.T) {
	all := known(t, machine(t, nil))
	for format, read := range map[string]func([]byte, any) error{"json": json.Unmarshal, "yaml": func(text []byte, to any) error { return yaml.Unmarshal(text, to) }} {
		var out bytes.Buffer
		var got []Plugin
		if err := print(&out, format, all); err != nil {
			t.Fatal(err)
		}
		if err := read(out.Bytes(), &got); err != nil || len(got) != len(all) || find(t, got, "iscsi").Ready {
			t.Errorf("%s: %v: %s", format, err, &out)
		}
	}
	var out bytes.Buffer
	if err := print(&out, "wide", all); err != nil || !strings.Contains(out.String(), "awsElasticBlockStore,azureDisk,") {
		t.Errorf("%v:\n%s", err, &out)
	}
}

// A machine that lacks everything has the longest rows.
func TestTheTableFitsATerminal(t *testing.T) {
	typist, program := terminal.Open(t)
	terminal.Resize(t, program, 80)
	printed := make(chan error, 1)
	all := known(t, machine(t, nil))
	go func() {
		printed <- print(program, "table", all)
		_, _ = program.WriteString("end\n")
	}()
	var lines []string
	for scanner := bufio.NewScanner(typist); scanner.Scan() && scanner.Text() != "end"; {
		lines = append(lines, scanner.Text())
		if table.Width(scanner.Text()) > 80 {
			t.Errorf("%q is wider than 80 columns", scanner.Text())
		}
	}
	if err := <-printed; err != nil || len(lines) != len(all)+1 {
		t.Errorf("%v:\n%s", err, strings.Join(lines, "\n"))
	}
}
