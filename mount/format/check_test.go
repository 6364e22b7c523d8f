package format_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/loopdev"
)

func TestFsckCorrectsWhatItCan(t *testing.T) {
	onHost(t, func(t *testing.T) {
		d, target := loopdev.New(t, 64*mib), t.TempDir()
		run(t, "mkfs.ext4", "-F", d.Path)
		run(t, "debugfs", "-w", "-R", "ssv free_blocks_count 1", d.Path)
		run(t, "debugfs", "-w", "-R", "ssv state 0", d.Path) // not cleanly unmounted
		unchecked := request(d.Path, target, "ext4", "ro")
		unchecked.Check = format.CheckNever
		if got, err := formatter().FormatAndMount(t.Context(), unchecked); err != nil || got.Corrected {
			t.Fatalf("with no check: %+v, %v", got, err)
		}
		unmount(t, target)
		got, err := formatter().FormatAndMount(t.Context(), request(d.Path, target, "ext4"))
		if err != nil || !got.Corrected || got.Unchecked != "" {
			t.Errorf("%+v, %v", got, err)
		}
		unmount(t, target)
		got, err = formatter().FormatAndMount(t.Context(), request(d.Path, target, "ext4"))
		if err != nil || got.Corrected {
			t.Errorf("the second time: %+v, %v", got, err)
		}
	})
}

func TestWhatFsckCannotCorrectIsNotMounted(t *testing.T) {
	onHost(t, func(t *testing.T) {
		d, target := loopdev.New(t, 64*mib), t.TempDir()
		run(t, "mkfs.ext4", "-F", d.Path)
		run(t, "debugfs", "-w", "-R", "clri <2>", d.Path) // the root directory
		run(t, "debugfs", "-w", "-R", "ssv state 2", d.Path)
		_, err := formatter().FormatAndMount(t.Context(), request(d.Path, target, "ext4"))
		e, _ := errors.AsType[*format.Error](err)
		if !errors.Is(err, format.ErrUncorrected) || !strings.Contains(e.Output, "UNEXPECTED INCONSISTENCY") || e.Op != format.OpCheck {
			t.Errorf("%v", err)
		}
		if _, mounted := at(t, target); mounted {
			t.Error("it is mounted")
		}
	})
}

func TestWithoutFsckItIsMounted(t *testing.T) {
	onHost(t, func(t *testing.T) {
		d, target := loopdev.New(t, 64*mib), t.TempDir()
		run(t, "mkfs.ext4", "-F", d.Path)
		broken := t.TempDir()
		if err := os.WriteFile(filepath.Join(broken, "fsck"), []byte("#!/bin/sh\necho out of order\nexit 8\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		for dir, why := range map[string]string{t.TempDir(): "not found", broken: "out of order"} {
			f := format.New(format.Config{Mounter: host.New(host.Config{}), ToolDirs: []string{dir}})
			got, err := f.FormatAndMount(t.Context(), request(d.Path, target, "ext4"))
			if err != nil || !strings.Contains(got.Unchecked, why) {
				t.Errorf("fsck %s: %+v, %v", why, got, err)
			}
			unmount(t, target)
		}
	})
}
