package nearest_test

import (
	"testing"

	"github.com/podvol/podvol/util/nearest"
)

func TestWord(t *testing.T) {
	commands := []string{"mount", "status", "unmount", "run", "run-node", "version"}
	for given, want := range map[string]string{
		"versio": "version", "versoin": "version", "moutn": "mount", "unmout": "unmount", "statsu": "status",
		"runnode": "run-node", "rnu": "run", "describe": "", "x": "", "": "", "mount": "mount", "vörsion": "version",
	} {
		if got := nearest.Word(given, commands); got != want {
			t.Errorf("%q: %q, want %q", given, got, want)
		}
	}
	flags := []string{"--filename", "--node", "--node-ip", "--root-dir", "--volume-dir"}
	for given, want := range map[string]string{
		"--node-name": "--node", "--nodename": "--node", "--node-ipp": "--node-ip", "--file": "--filename",
		"--vol": "--volume-dir", "--root-dri": "--root-dir", "--node-of-a-kubelet": "",
	} {
		if got := nearest.Word(given, flags); got != want {
			t.Errorf("%q: %q, want %q", given, got, want)
		}
	}
	if got := nearest.Word("rune-node", []string{"run", "run-node"}); got != "run-node" {
		t.Errorf("of a word that begins it and one that is nearer: %q", got)
	}
	if got := nearest.Word("cat", []string{"bat", "car"}); got != "bat" {
		t.Errorf("of two that are equally like it: %q", got)
	}
}
