package nodeserver

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/examples/nodehttp"
)

// A node that takes questions and does not answer, as one that was stopped, keeps nobody waiting
// for ever: not those that watch it either.
func TestANodeThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, node := net.Pipe()
		defer node.Close()
		go func() { _, _ = io.Copy(io.Discard, node) }()
		began := time.Now()
		answer, err := askBy(t.Context(), func(context.Context, string, string) (net.Conn, error) { return ours, nil }, eventsPath, patience)
		if err == nil {
			answer.Body.Close()
			t.Fatal("it has answered")
		}
		if took := time.Since(began); took != patience {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// An error of what a node answers says that it is of that, and of which node.
func TestAnAnswerThatCannotBeRead(t *testing.T) {
	if os.Geteuid() != 0 {
		return // only root has a socket
	}
	root := t.TempDir()
	server, err := listenLocally(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(socketDir) // which others may use
	defer server.Close()
	page := func(path, answer string) nodehttp.Page {
		return nodehttp.Page{Path: path, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) })}
	}
	server.Serve(new(nodehttp.Metrics), nil, page(eventsPath, "data"), page(watchPath, "data: {\n"))
	_, err = Events(t.Context(), root)
	watched := Watch(t.Context(), root, func(map[string]Volume) error { return nil })
	for _, err := range []error{err, watched} {
		if err == nil || !strings.HasPrefix(err.Error(), root+": podvol run-node's answer cannot be read: ") {
			t.Errorf("%v", err)
		}
	}
}
