package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/podvol/podvol/examples/podvol/internal/nodeserver"
	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/volume/objects"
)

// onLine calls do before a line with this text is written.
type onLine struct {
	io.WriteCloser
	text string
	do   func()
}

func (w onLine) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(w.text)) {
		w.do()
	}
	return w.WriteCloser.Write(p)
}

// Claims, volumes and disks may change before the manifests have been read: that
// is no reason to end, nor to tear down what an earlier run has mounted. Both
// signs are there when the loop begins, which may take either.
func TestRunNodeReadsTheManifestsBeforeItServesClaims(t *testing.T) {
	leaks(t)
	dir, root := t.TempDir(), filepath.Join(t.TempDir(), "root")
	where, err := newPlace(root, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(where.close)
	putManifest(t, dir, "a.yaml", podNamed("a", disk))
	file := ""
	for round := range 10 {
		n := keepWhileStorageChanges(t, dir, where)
		n.hears(" of 1 pod")
		if round == 0 {
			file = filepath.Join(where.rootDir, strings.TrimPrefix(n.row("disk", "mounted").Path, root), "file")
			write(t, file)
		}
		if code := n.stop(); code != exitOK {
			t.Fatalf("round %d: exit code %d; it said %q", round, code, n.heard())
		}
		if text, err := os.ReadFile(file); string(text) != "precious" {
			t.Fatalf("round %d: the emptyDir has %q, %v", round, text, err)
		}
	}
}

// keepWhileStorageChanges keeps volumes as run-node does, where a storage class
// is stored just before it has looked into its directory for the first time.
func keepWhileStorageChanges(t *testing.T, dir string, where *place) *nodeTest {
	t.Helper()
	outR, outW := io.Pipe()
	errR, errW := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	store := objects.NewStore()
	s := streams{out: outW, err: onLine{errW, "metrics are at", func() {
		class := &storagev1.StorageClass{Provisioner: "kubernetes.io/no-provisioner"}
		class.Name = "disks"
		if _, err := store.Create(ctx, class); err != nil {
			t.Error(err)
		}
	}}}
	ended := make(chan int, 1)
	go func() {
		defer func() { outW.Close(); errW.Close() }()
		ended <- keepIn(ctx, t, s, dir, where, store)
	}()
	return follow(t, dir, where.shown, outR, errR, cancel, func() int { return <-ended })
}

// keepIn is runNode in a place, with a store, of the caller's.
func keepIn(ctx context.Context, t *testing.T, s streams, dir string, where *place, store *objects.Store) int {
	out := rows.NewStream("json", s.out, s.err)
	server, err := nodeserver.Listen(ctx, "127.0.0.1:0", usagef)
	if err != nil {
		t.Error(err)
		return exitFailed
	}
	defer server.Close()
	o := runNodeOptions{dir: dir, rootDir: where.rootDir, nodeName: "here"}
	config, err := o.agent(ctx, where, s, out)
	if err != nil {
		t.Error(err)
		return exitFailed
	}
	config.Store, config.Logger = store, slog.New(slog.DiscardHandler)
	if _, err := keepNode(ctx, config, server, where); err != nil {
		t.Errorf("it ended with %v", err)
		return exitFailed
	}
	return exitOK
}
