package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/testtool"
)

const unitFile = "podvol.service"

// readUnit returns the settings of the unit, as "section.name".
func readUnit(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(unitFile)
	testtool.Must(t, err)
	settings, section := make(map[string]string), ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch name, value, found := strings.Cut(line, "="); {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			section = strings.Trim(line, "[]")
		case !found || settings[section+"."+name] != "":
			t.Errorf("line %q", line)
		default:
			settings[section+"."+name] = value
		}
	}
	return settings
}

// The unit starts a command that there is, in directories that are made, and gives it no mounts of
// its own.
func TestUnitStartsRunNode(t *testing.T) {
	unit := readUnit(t)
	words := strings.Fields(unit["Service.ExecStart"])
	command, rest, err := rootCommand(streams{}).Find(words[1:])
	testtool.Must(t, err)
	if command.Name() != "run-node" {
		t.Fatalf("it runs %s", command.Name())
	}
	testtool.Must(t, command.ParseFlags(rest))
	testtool.Must(t, command.ValidateArgs(command.Flags().Args()))
	dir, err := command.Flags().GetString("filename")
	testtool.Must(t, err)
	if made := strings.Fields(unit["Service.ConfigurationDirectory"]); !slices.Contains(made, strings.TrimPrefix(dir, "/etc/")) {
		t.Errorf("nobody makes %s", dir)
	}
	root, err := command.Flags().GetString("root-dir")
	testtool.Must(t, err)
	if root != "/var/lib/"+unit["Service.StateDirectory"] || !slices.Contains(strings.Fields(unit["Unit.RequiresMountsFor"]), root) {
		t.Errorf("nobody makes %s, or waits for its disk", root)
	}
	if unit["Service.RestartPreventExitStatus"] != "2" || exitUsage != 2 {
		t.Error("a wrong command line is tried again and again")
	}
	for name := range unit {
		for _, own := range []string{"Private", "Protect", "ReadOnly", "ReadWrite", "Inaccessible", "Bind", "TemporaryFileSystem", "MountFlags", "RootDirectory", "RootImage", "DynamicUser", "NoNewPrivileges", "RestrictNamespaces", "RestrictSUIDSGID"} {
			if strings.HasPrefix(name, "Service."+own) {
				t.Errorf("%s breaks mounts", name)
			}
		}
	}
}

// Systemd understands the unit, where it is installed.
func TestSystemdAcceptsTheUnit(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Log("there is no systemd-analyze to ask")
		return
	}
	text, err := os.ReadFile(unitFile)
	testtool.Must(t, err)
	program, err := os.Executable()
	testtool.Must(t, err)
	copied := testtool.WriteFile(t, strings.ReplaceAll(string(text), "/usr/local/bin/podvol", program), t.TempDir(), unitFile)
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", "--recursive-errors=no", copied).CombinedOutput()
	var about []string // other units of this machine have troubles of their own
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, filepath.Base(unitFile)) {
			about = append(about, line)
		}
	}
	if len(about) > 0 || err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
