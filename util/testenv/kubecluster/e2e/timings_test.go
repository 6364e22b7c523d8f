package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// cluster is an API server that runs each pod at once, or refuses it.
type cluster struct {
	refused string
	seen    []string
	events  chan string
}

func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind := strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/default/")
	if r.Method == http.MethodGet {
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		for e := range c.events {
			fmt.Fprintln(w, e)
			w.(http.Flusher).Flush()
		}
		return
	}
	c.seen = append(c.seen, r.Method+" "+kind)
	switch {
	case c.refused != "":
		http.Error(w, c.refused, http.StatusForbidden)
	case r.Method == http.MethodPost:
		c.events <- `{"type": "ADDED", "object": {"status": {"phase": "Pending"}}}`
		c.events <- `{"type": "MODIFIED", "object": {"status": {"phase": "Running"}}}`
	default:
		c.events <- `{"type": "DELETED", "object": {}}`
		close(c.events)
	}
}

func timerAt(t *testing.T, c *cluster) timer {
	t.Helper()
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	return timer{server.Client(), server.URL}
}

func TestAPodIsMeasuredFromItsCreationUntilItHasGone(t *testing.T) {
	c := &cluster{events: make(chan string, 10)}
	if _, err := timerAt(t, c).pod(t.Context(), mixes()[0].podOn("node1", "pod-0")); err != nil {
		t.Fatal(err)
	}
	if want := []string{"POST pods", "DELETE pods/pod-0"}; !slices.Equal(c.seen, want) {
		t.Errorf("the server was asked %q, want %q", c.seen, want)
	}
}

func TestARefusedPodIsAnError(t *testing.T) {
	c := &cluster{refused: "no such node", events: make(chan string)}
	close(c.events)
	if _, err := timerAt(t, c).pod(t.Context(), mixes()[0].podOn("node1", "pod-0")); err == nil || !strings.Contains(err.Error(), "no such node") {
		t.Errorf("err = %v", err)
	}
}

func TestMixesMountAllTheirVolumes(t *testing.T) {
	names := make(map[string]bool)
	for _, m := range mixes() {
		content, err := json.Marshal(m.podOn("node1", "pod-0"))
		if err != nil {
			t.Fatal(err)
		}
		var pod struct {
			Spec struct {
				NodeName   string
				Volumes    []struct{ Name string }
				Containers []struct {
					VolumeMounts []struct{ Name, MountPath string }
				}
			}
		}
		if err := json.Unmarshal(content, &pod); err != nil {
			t.Fatal(err)
		}
		if got := pod.Spec; got.NodeName != "node1" || len(got.Volumes) != len(m.volumes) || len(got.Containers[0].VolumeMounts) != len(m.volumes) {
			t.Errorf("%s is %s", m.name, content)
		}
		names[m.name] = true
	}
	if len(names) != 10 {
		t.Errorf("there are %d mixes", len(names))
	}
}

func TestMedian(t *testing.T) {
	of := []timing{{running: 3}, {running: 100}, {running: 1}}
	if got := median(of, func(t timing) time.Duration { return t.running }); got != 3 {
		t.Errorf("the median is %d", got)
	}
}
