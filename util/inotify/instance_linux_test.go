package inotify_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/inotify"
)

func TestEvents(t *testing.T) {
	dir := t.TempDir()
	i, err := inotify.New()
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	wd, err := i.Add(dir, unix.IN_CREATE|unix.IN_DELETE)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := i.Add(dir, unix.IN_CREATE|unix.IN_DELETE); err != nil || again != wd {
		t.Errorf("once more: %d, %v, want %d", again, err, wd)
	}
	// Names of all lengths around the kernel's padding.
	var want []inotify.Event
	for n := 1; n <= 33; n++ {
		name := fmt.Sprintf("%0*d", n, 0)
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		want = append(want, inotify.Event{Watch: wd, Mask: unix.IN_CREATE, Name: name})
	}
	i.Remove(wd)
	i.Remove(wd) // it has gone
	want = append(want, inotify.Event{Watch: wd, Mask: unix.IN_IGNORED})
	var got []inotify.Event
	for len(got) < len(want) {
		events, err := i.Read()
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, events...)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestErrors(t *testing.T) {
	i, err := inotify.New()
	if err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(t.TempDir(), "missing")
	var at *fs.PathError
	if _, err := i.Add(missing, unix.IN_CREATE); !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &at) || at.Path != missing {
		t.Errorf("Add of a missing path: %v", err)
	}
	ended := make(chan error)
	go func() {
		_, err := i.Read()
		ended <- err
	}()
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Read after Close: %v", err)
	}
	if _, err := i.Add(t.TempDir(), unix.IN_CREATE); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Add after Close: %v", err)
	}
	i.Remove(1)
}

func TestLost(t *testing.T) {
	if !(inotify.Event{Watch: -1, Mask: unix.IN_Q_OVERFLOW}).Lost() || (inotify.Event{Mask: unix.IN_IGNORED}).Lost() {
		t.Error("Lost is about IN_Q_OVERFLOW")
	}
}
