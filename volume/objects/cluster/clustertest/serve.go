package clustertest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/scheme"
)

// Serve serves a server on the loopback interface until the end of the test, for programs that
// run as processes of their own. It returns the path of their kubeconfig. Anyone may do
// anything. Unlike the server itself it takes requests in protobuf, which client-go sends if
// it is not told otherwise.
func Serve(t testing.TB, server http.Handler) (kubeconfig string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Server{Handler: inJSON(server), ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = web.Serve(listener) // until it is closed
	}()
	t.Cleanup(func() { _ = web.Close(); <-ended })
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "test",
"clusters": [{"name": "test", "cluster": {"server": "http://%s"}}], "contexts": [{"name": "test", "context": {"cluster": "test", "user": ""}}]}`, listener.Addr())
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// inJSON hands requests in protobuf on in JSON.
func inJSON(server http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("Content-Type"), "application/vnd.kubernetes.protobuf") {
			server.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err == nil && len(body) > 0 {
			if body, err = jsonOf(body); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
		}
		asked := r.Clone(r.Context())
		asked.Body, asked.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		asked.Header.Set("Content-Type", "application/json")
		server.ServeHTTP(w, asked)
	})
}

func jsonOf(body []byte) ([]byte, error) {
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, err
	}
	return json.Marshal(object)
}
