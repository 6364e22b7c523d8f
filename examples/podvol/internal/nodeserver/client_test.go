package nodeserver

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
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
