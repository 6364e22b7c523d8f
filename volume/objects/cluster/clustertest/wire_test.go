package clustertest_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/podvol/podvol/util/testenv/apiserver"
	"github.com/podvol/podvol/util/testenv/noleak"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
)

func TestMain(m *testing.M) { noleak.Main(m) }

// The server in memory must answer as a real one.
func TestTheWire(t *testing.T) {
	api := clustertest.NewServer()
	server := httptest.NewServer(api)
	defer server.Close()
	defer api.DropWatches()
	defer server.Client().CloseIdleConnections()
	w := &wire{t: t, client: server.Client(), url: server.URL, inMemory: true}
	w.walk()
}

// What the server in memory must answer is what a real one does.
func TestTheWireOnARealAPIServer(t *testing.T) {
	apiserver.Run(t, apiserver.Config{}, func(t *testing.T, s *apiserver.Server) {
		config, err := clientcmd.RESTConfigFromKubeConfig(s.Admin(t))
		if err != nil {
			t.Fatal(err)
		}
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		defer client.CloseIdleConnections()
		w := &wire{t: t, client: client, url: s.URL()}
		for _, namespace := range []string{"ops", "dev"} {
			w.do(http.MethodPost, "/api/v1/namespaces", `{"metadata":{"name":"`+namespace+`"}}`)
		}
		w.walk()
	})
}

// wire speaks HTTP and JSON to a server.
type wire struct {
	t        *testing.T
	client   *http.Client
	url      string
	inMemory bool
	uid, old string // of the object named last, and the first version seen
	next     string // of a list
}

func (w *wire) walk() {
	for _, s := range steps() {
		var got string
		if s.method == "WATCH" {
			got = w.watch(s.path, strings.Count(s.want, ";")+1)
		} else {
			got = w.do(s.method, s.path, s.body)
		}
		want := s.want
		if w.inMemory && s.inMemory != "" {
			want = s.inMemory
		}
		if got != want {
			w.t.Errorf("%s: got %q, want %q", s.what, got, want)
		}
	}
}

func (w *wire) send(ctx context.Context, method, path, body string) *http.Response {
	fill := strings.NewReplacer("$uid", w.uid, "$old", w.old, "$next", w.next).Replace
	r, err := http.NewRequestWithContext(ctx, method, w.url+fill(path), strings.NewReader(fill(body)))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/strategic-merge-patch+json")
	}
	response, err := w.client.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	return response
}

// do returns an answer in short.
func (w *wire) do(method, path, body string) string {
	response := w.send(w.t.Context(), method, path, body)
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return fmt.Sprint(response.StatusCode, " ", w.short(content))
}

// watch returns the first n events of a watch in short.
func (w *wire) watch(path string, n int) string {
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	response := w.send(ctx, http.MethodGet, path, "")
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		content, _ := io.ReadAll(response.Body)
		return fmt.Sprint(response.StatusCode, " ", w.short(content))
	}
	var all []string
	for lines := bufio.NewScanner(response.Body); len(all) < n && lines.Scan(); {
		var e struct {
			Type   string
			Object json.RawMessage
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			w.t.Fatal(err)
		}
		all = append(all, e.Type+" "+w.short(e.Object))
	}
	return strings.Join(all, "; ")
}

// short tells what matters of an object, a list or a refusal.
func (w *wire) short(content []byte) string {
	var u unstructured.Unstructured
	if err := json.Unmarshal(content, &u.Object); err != nil {
		return string(bytes.TrimSpace(content))
	}
	switch {
	case u.GetKind() == "Status":
		var s metav1.Status
		if err := json.Unmarshal(content, &s); err != nil {
			w.t.Fatal(err)
		}
		return refusal(s)
	case u.IsList():
		return w.list(u)
	}
	w.uid = string(u.GetUID())
	if w.old == "" {
		w.old = u.GetResourceVersion()
	}
	said := []string{u.GetKind() + "/" + u.GetName()}
	if u.GetDeletionTimestamp() != nil {
		said = append(said, "deleting")
	}
	if u.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
		said = append(said, "end of initial events")
	}
	if phase, ok, _ := unstructured.NestedString(u.Object, "status", "phase"); ok {
		said = append(said, phase)
	}
	if used, ok, _ := unstructured.NestedStringSlice(u.Object, "status", "volumesInUse"); ok {
		said = append(said, fmt.Sprint(used))
	}
	if labels := u.GetLabels(); len(labels) > 0 {
		said = append(said, fmt.Sprint(labels))
	}
	return strings.Join(said, " ")
}

func (w *wire) list(u unstructured.Unstructured) string {
	said := []string{u.GetKind()}
	list, err := u.ToList()
	if err != nil {
		w.t.Fatal(err)
	}
	raw, _, _ := unstructured.NestedSlice(u.Object, "items")
	for i, item := range list.Items {
		kind, _, _ := unstructured.NestedString(raw[i].(map[string]any), "kind")
		said = append(said, kind+"/"+item.GetName())
	}
	if w.next = list.GetContinue(); w.next != "" {
		said = append(said, "and more")
	}
	return strings.Join(said, " ")
}

// refusal also tells of a deletion, which is answered alike.
func refusal(s metav1.Status) string {
	said := []string{s.Status, string(s.Reason)}
	if d := s.Details; d != nil {
		said = append(said, d.Kind+"/"+d.Name)
		if d.UID != "" {
			said = append(said, "which had a UID")
		}
		for _, c := range d.Causes {
			said = append(said, c.Field)
		}
	}
	said = slices.DeleteFunc(slices.Compact(said), func(word string) bool { return word == "" || word == "/" })
	return strings.Join(said, " ")
}
