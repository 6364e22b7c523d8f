package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"":                               "--socket is missing",
		"--socket s":                     "--dir is missing",
		"--socket s --dir d x":           `unexpected argument "x"`,
		"--socket s --dir d x -- y":      `unexpected argument "x"`,
		"--socket s --":                  "--dir is missing",
		"--socket s --dir d --disk tape": "must be directory or loop",
		"--socket s --dir d --misbehave politely": "no such fault",
	} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
	o, err := parse(strings.Fields("--socket s --dir d --disk loop --strict --attach --stage=false --misbehave no-version"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	c := o.config
	if !filepath.IsAbs(o.socket) || !filepath.IsAbs(c.Dir) || c.Disk != csitest.Loop || c.CreateOnUse || !c.Capabilities.Attach || c.Capabilities.Stage || len(c.Misbehaviours) != 1 {
		t.Errorf("%+v", o)
	}
}

// The program serves until it is told to end, and prints what it is asked.
func TestRun(t *testing.T) {
	dir := csitest.SocketDir(t)
	o, err := parse([]string{"--socket", filepath.Join(dir, "s"), "--dir", filepath.Join(dir, "volumes"), "--log", "--register", filepath.Join(dir, "r")}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	o.config.Mounter = fakemount.New()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reader, writer := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, o, writer)
		writer.Close()
		done <- err
	}()
	line := make([]byte, 256)
	if n, err := reader.Read(line); err != nil || !bytes.Contains(line[:n], []byte(csitest.DefaultName)) {
		t.Fatalf("it says %q, %v", line[:n], err)
	}
	rest := make(chan string, 1)
	go func() {
		text, _ := io.ReadAll(reader)
		rest <- string(text)
	}()
	conn, err := csitest.Dial(o.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = csi.NewNodeClient(conn).NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: "v1", StagingTargetPath: filepath.Join(dir, "staging")})
	if err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if text, want := <-rest, "NodeUnstageVolume v1 at "+filepath.Join(dir, "staging")+"\n"; text != want {
		t.Errorf("it printed %q, want %q", text, want)
	}
	for _, socket := range []string{o.socket, o.register} {
		if _, err := os.Lstat(socket); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", socket, err)
		}
	}
}

// With a command it serves that, ends with it, and leaves nothing.
func TestRunOfACommand(t *testing.T) {
	dir := csitest.SocketDir(t)
	t.Setenv("TMPDIR", dir)
	socket := filepath.Join(dir, "s")
	for script, code := range map[string]int{"test -S $0": 0, "test -S $0; exit 7": 7} {
		o, err := parse([]string{"--socket", socket, "--", "sh", "-c", script, socket}, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		o.config.Mounter = fakemount.New()
		err = run(t.Context(), o, io.Discard)
		ended, _ := errors.AsType[*exec.ExitError](err)
		if code == 0 && err != nil || code != 0 && (ended == nil || ended.ExitCode() != code) {
			t.Errorf("%s: %v", script, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
}
