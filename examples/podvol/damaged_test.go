package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/nstest"
)

// seeDamage does what a person does who has seen to damaged records.
func seeDamage(t *testing.T, root string) {
	t.Helper()
	kept, err := filepath.Glob(filepath.Join(root, "podvol", "records.damaged-*"))
	if err != nil || len(kept) == 0 {
		t.Fatal("no damaged file is kept", err)
	}
	for _, file := range kept {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}

// However the record of a mounted claim is lost: its data is not deleted, by no
// command and however often that is tried, and status and fsck say why, until a
// person has seen to it.
func TestNothingIsDeletedBesideDamage(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAlone(t, func(t *testing.T) {
		for name, spoil := range map[string]func(path string) error{
			"flipped": func(path string) error {
				text, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				for i := 0; ; { // every record of the claim
					at := bytes.Index(text[i:], []byte(`"orders"`))
					if at < 0 {
						return os.WriteFile(path, text, 0o600)
					}
					i += at + 2
					text[i] ^= 1
				}
			},
			"removed": os.Remove,
			"removed with its proof": func(path string) error {
				return errors.Join(os.Remove(path), os.Remove(path+".made"))
			},
			"emptied": func(path string) error { return os.Truncate(path, 0) },
		} {
			t.Run(name, func(t *testing.T) {
				root, dir := filepath.Join(t.TempDir(), "root"), filepath.Join(t.TempDir(), "kept")
				file := manifestFile(t, strings.ReplaceAll(claimsOfTwoKinds, "DIR", dir))
				at := func(code int, args ...string) (out, errOut string) {
					t.Helper()
					return mustPodvol(t, code, append(args, "--root-dir", root)...)
				}
				at(exitOK, "mount", "-f", file)
				out, _ := at(exitOK, "pv", "-o", "name")
				made := strings.TrimPrefix(strings.Fields(strings.ReplaceAll(out, "persistentvolume/kept\n", ""))[0], "persistentvolume/")
				data := filepath.Join(root, "podvol", "volumes", made, "order")
				if err := os.WriteFile(data, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := spoil(filepath.Join(root, "podvol", "records")); err != nil {
					t.Fatal(err)
				}
				for i := range 2 {
					for _, args := range [][]string{
						{"pvc", "delete", "shop/orders"}, {"pvc", "delete", "shop/orders", "--dry-run"}, {"pv", "delete", made},
						{"fsck"}, {"fsck", "--repair"}, {"status"},
					} {
						out, errOut := at(exitFailed, args...)
						if said := out + errOut; !strings.Contains(said, "remove ") || !strings.Contains(said, "damaged") && args[0] != "pv" {
							t.Errorf("look %d, %v says %s", i, args, said)
						}
						if _, err := os.Stat(data); err != nil {
							t.Fatalf("look %d, after %v: %v", i, args, err)
						}
					}
				}
				// The directories tell what it was: all of it comes back.
				at(exitFailed, "fsck", "--repair", "--adopt")
				seeDamage(t, root)
				at(exitOK, "status")
				at(exitOK, "fsck")
				at(exitOK, "unmount", "--all")
				at(exitOK, "pvc", "delete", "shop/orders")
				assertNothingMountedBelow(t, root)
				if _, err := os.Stat(data); err == nil {
					t.Error("the data is still there")
				}
			})
		}
	})
}
