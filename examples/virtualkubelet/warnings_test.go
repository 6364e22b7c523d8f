package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// What the API server warns of is a line of the log like all others.
func TestWarningsOfTheAPI(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Warning", `299 - "spec.old is deprecated"`)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"node1"}}`)
	}))
	defer server.Close()
	var out bytes.Buffer
	access := &rest.Config{Host: server.URL}
	asKubelet(access, slog.New(slog.NewTextHandler(&out, nil)))
	set, err := kubernetes.NewForConfig(access)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := set.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if line := out.String(); !strings.Contains(line, `level=WARN msg="the API server warns" warning="spec.old is deprecated"`) {
		t.Errorf("the log has %q", line)
	}
	set.CoreV1().RESTClient().(*rest.RESTClient).Client.CloseIdleConnections()
}
