//go:build linux

package hostpath_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// A volume whose path is missing is woken when that appears, by the path's own spelling.
func TestAMissingPathThatAppears(t *testing.T) {
	p, _ := newPlugin(t)
	ctx, cancel := context.WithCancel(t.Context())
	told, ended := make(chan string, 1000), make(chan error, 1)
	go func() { ended <- volume.RunPlugin(ctx, p, func(source string) { told <- source }) }()
	dir, made := t.TempDir(), make(map[string]bool)
	for late := time.After(time.Minute); ; { // what is missing before it runs is not told of
		path := filepath.Join(dir, strconv.Itoa(len(made))) + "/"
		if err := setUp(t, p, inline(path, v1.HostPathDirectory)); !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		made[path] = true
		select {
		case path := <-told:
			if !made[path] {
				t.Errorf("told of %s", path)
			}
			if err := setUp(t, p, inline(path, v1.HostPathDirectory)); err != nil {
				t.Error(err)
			}
		case <-late:
			t.Fatal("not told")
		case <-time.After(10 * time.Millisecond):
			continue
		}
		break
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
