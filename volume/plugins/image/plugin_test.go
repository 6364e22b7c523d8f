package image_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/ociimage"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/image"
)

// node is a fake node with the plugin, and a registry.
type node struct {
	*fakehost.Host
	registry *ociimage.Registry
	at       string // the registry's name
	plugin   *image.Plugin
	config   image.Config
}

func newNode(t *testing.T, config image.Config) *node {
	t.Helper()
	n := &node{Host: fakehost.New(t), registry: &ociimage.Registry{}, config: config}
	if n.config.Transport == nil {
		server := httptest.NewServer(n.registry)
		t.Cleanup(server.Close)
		n.at = strings.TrimPrefix(server.URL, "http://")
		n.config.Transport = server.Client().Transport
	}
	n.config.ReservePercent = -1
	n.restart(t)
	return n
}

// restart begins with a new plugin.
func (n *node) restart(t *testing.T) {
	t.Helper()
	n.plugin = image.New(n.config)
	if err := n.plugin.Init(n.Host); err != nil {
		t.Fatal(err)
	}
}

func (n *node) setUp(ctx context.Context, pod *v1.Pod, name, reference string, policy v1.PullPolicy) (string, error) {
	m, err := n.plugin.NewMounter(volume.NewSpecFromVolume(&v1.Volume{Name: name,
		VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: reference, PullPolicy: policy}}}), pod)
	if err != nil {
		return "", err
	}
	return m.GetPath(), m.SetUp(ctx, volume.MounterArgs{})
}

func (n *node) mustSetUp(t *testing.T, pod *v1.Pod, name, reference string, policy v1.PullPolicy) string {
	t.Helper()
	path, err := n.setUp(t.Context(), pod, name, reference, policy)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func (n *node) tearDown(t *testing.T, pod *v1.Pod, name string) {
	t.Helper()
	u, err := n.plugin.NewUnmounter(name, pod.UID)
	if err == nil {
		err = u.TearDown(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// kept returns the names of what the store has of a kind.
func (n *node) kept(t *testing.T, kind string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(n.GetPluginDir(image.PluginName), kind))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (n *node) reasons() []string {
	var all []string
	for _, e := range n.RecordedEvents() {
		all = append(all, e.Reason)
	}
	return all
}

func file(name, content string) ociimage.Layer {
	return ociimage.Layer{Entries: []ociimage.Entry{{Name: name, Content: content}}}
}

func content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestPullPolicies(t *testing.T) {
	n := newNode(t, image.Config{})
	first := n.registry.Add("web:1", file("f", "1"))
	n.registry.Add("web:latest", file("f", "1"))
	web := n.at + "/web:1"
	if _, err := n.setUp(t.Context(), fakehost.Pod("never"), "v", web, v1.PullNever); !errors.Is(err, image.ErrImageNeverPull) || len(n.registry.Asked("")) > 0 {
		t.Errorf("Never: %v, asked %q", err, n.registry.Asked(""))
	}
	pod := fakehost.Pod("first")
	n.mustSetUp(t, pod, "v", web, "")
	asked := len(n.registry.Asked(""))
	second := n.registry.Add("web:1", file("f", "2"))
	if got := content(t, filepath.Join(n.mustSetUp(t, fakehost.Pod("present"), "v", web, ""), "f")); got != "1" || len(n.registry.Asked("")) > asked {
		t.Errorf("IfNotPresent shows %q, asked %q", got, n.registry.Asked("")[asked:])
	}
	n.mustSetUp(t, fakehost.Pod("never again"), "v", web, v1.PullNever)
	if got := content(t, filepath.Join(n.mustSetUp(t, fakehost.Pod("always"), "v", web, v1.PullAlways), "f")); got != "2" {
		t.Errorf("Always shows %q", got)
	}
	// the pod has it already: once per pod
	if got := content(t, filepath.Join(n.mustSetUp(t, pod, "w", web, v1.PullAlways), "f")); got != "1" {
		t.Errorf("a further volume of the first pod shows %q", got)
	}
	n.mustSetUp(t, fakehost.Pod("latest"), "v", n.at+"/web", "")
	asked = len(n.registry.Asked("HEAD"))
	n.mustSetUp(t, fakehost.Pod("latest again"), "v", n.at+"/web", "")
	if len(n.registry.Asked("HEAD")) != asked+1 {
		t.Error("without a tag the registry is not asked each time")
	}
	refs, err := n.plugin.ImageRefs(pod.UID)
	if want := n.at + "/web@" + first; err != nil || refs["v"] != want || refs["w"] != want || first == second {
		t.Errorf("ImageRefs = %v, %v", refs, err)
	}
	n.restart(t)
	if again, err := n.plugin.ImageRefs(pod.UID); err != nil || again["v"] != refs["v"] {
		t.Errorf("after a restart: %v, %v", again, err)
	}
}

func TestEventsAreKubernetes(t *testing.T) {
	n := newNode(t, image.Config{})
	n.registry.Add("web:1", file("f", "1"))
	n.mustSetUp(t, fakehost.Pod("a"), "v", n.at+"/web:1", "")
	n.mustSetUp(t, fakehost.Pod("b"), "v", n.at+"/web:1", "")
	pod := fakehost.Pod("c")
	if _, err := n.setUp(t.Context(), pod, "v", n.at+"/none:1", ""); !errors.Is(err, image.ErrImagePull) || !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("a missing image: %v", err)
	}
	_, err := n.setUp(t.Context(), pod, "v", n.at+"/none:1", "")
	at, ok := volume.RetryAt(err)
	if !errors.Is(err, image.ErrImagePullBackOff) || !ok || time.Until(at) > 11*time.Second || !strings.Contains(err.Error(), n.at) || !strings.Contains(err.Error(), `volume "v"`) {
		t.Errorf("soon after: %v, %v", err, at)
	}
	_, _ = n.setUp(t.Context(), pod, "w", n.at+"/web:1", v1.PullPolicy("Never"))
	_, _ = n.setUp(t.Context(), fakehost.Pod("d"), "w", n.at+"/other:1", v1.PullNever)
	want := []string{"Pulling", "Pulled", "Pulled", "Pulling", "Failed", "BackOff", "Pulled", "ErrImageNeverPull"}
	if got := n.reasons(); !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
	for i, text := range []string{"Pulling image", "Successfully pulled image", "already present on machine", "", "Failed to pull image", "Back-off pulling image", "", "is not present with pull policy of Never"} {
		if m := n.RecordedEvents()[i].Message; !strings.Contains(m, text) {
			t.Errorf("event %d: %s", i, m)
		}
	}
	if _, err := n.setUp(t.Context(), pod, "x", "UPPER/case", ""); !errors.Is(err, image.ErrInvalidImageName) || volume.IsUncertain(err) {
		t.Errorf("an invalid name: %v", err)
	}
}

func TestFiftyPodsPullOnce(t *testing.T) {
	n := newNode(t, image.Config{})
	n.registry.Add("web:1", file("f", "1"), file("g", "2"), file("h", "3"))
	var pods sync.WaitGroup
	for i := range 50 {
		pods.Go(func() {
			if _, err := n.setUp(t.Context(), fakehost.Pod(fmt.Sprint("p", i)), "v", n.at+"/web:1", ""); err != nil {
				t.Error(err)
			}
		})
	}
	pods.Wait()
	times := make(map[string]int)
	for _, q := range n.registry.Asked("/blobs/") {
		times[q]++
	}
	for q, times := range times { // the configuration is no layer: it is read until the image is known
		if times > 1 && !strings.HasSuffix(q, n.registry.Config()) {
			t.Errorf("%s: %d times", q, times)
		}
	}
	if got := n.kept(t, "images"); len(got) != 2 || len(times) != 4 {
		t.Errorf("images: %q, asked %v", got, times)
	}
}

func TestLayersAreShared(t *testing.T) {
	n := newNode(t, image.Config{})
	base := file("base", "b")
	n.registry.Add("one:1", base, file("f", "1"))
	n.registry.Add("two:1", base, file("f", "2"))
	n.mustSetUp(t, fakehost.Pod("a"), "v", n.at+"/one:1", "")
	n.mustSetUp(t, fakehost.Pod("b"), "v", n.at+"/two:1", "")
	if got := n.kept(t, "layers"); len(got) != 6 { // three, each with its record
		t.Errorf("layers: %q", got)
	}
}

func TestCollection(t *testing.T) {
	n := newNode(t, image.Config{UnusedBytes: 10, UnusedFor: -1})
	shared := file("base", "12345")
	for i := range 4 {
		n.registry.Add(fmt.Sprintf("i%d:1", i), shared, file("f", fmt.Sprintf("content-%d", i)))
	}
	pods := make([]*v1.Pod, 4)
	for i := range pods {
		pods[i] = fakehost.Pod(fmt.Sprint("p", i))
		n.mustSetUp(t, pods[i], "v", fmt.Sprintf("%s/i%d:1", n.at, i), "")
	}
	n.tearDown(t, pods[0], "v") // its layer of 9 bytes is within the budget
	if got := len(n.kept(t, "images")); got != 8 {
		t.Errorf("%d entries of images, want 8", got)
	}
	n.restart(t) // what is unused is known from disk
	n.tearDown(t, pods[1], "v")
	asked := len(n.registry.Asked("/blobs/"))
	n.mustSetUp(t, fakehost.Pod("again"), "v", n.at+"/i1:1", "")
	if len(n.registry.Asked("/blobs/")) != asked {
		t.Error("the image that was used last is removed")
	}
	if got := len(n.kept(t, "images")); got != 6 {
		t.Errorf("%d entries of images, want 6", got)
	}
	for i, p := range pods[2:] {
		if got := content(t, filepath.Join(n.GetPodVolumeDir(p.UID, image.PluginName, "v"), "f")); got != fmt.Sprintf("content-%d", i+2) {
			t.Errorf("a volume in use shows %q", got)
		}
	}
}

// Nothing is removed that is mounted, although the record of its use is lost; and nothing at
// all while one cannot be read.
func TestLostAndDamagedUses(t *testing.T) {
	var log bytes.Buffer
	n := newNode(t, image.Config{UnusedBytes: -1, UnusedFor: -1, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	n.registry.Add("a:1", file("f", "a"))
	n.registry.Add("b:1", file("f", "b"))
	a, b := fakehost.Pod("a"), fakehost.Pod("b")
	path := n.mustSetUp(t, a, "v", n.at+"/a:1", "")
	uses := filepath.Join(n.GetPluginDir(image.PluginName), "uses")
	lost := filepath.Join(uses, n.kept(t, "uses")[0])
	if err := os.Remove(lost); err != nil {
		t.Fatal(err)
	}
	n.mustSetUp(t, b, "v", n.at+"/b:1", "")
	n.tearDown(t, b, "v")
	if got := content(t, filepath.Join(path, "f")); got != "a" || len(n.kept(t, "images")) != 2 {
		t.Errorf("the mounted volume shows %q, images %q", got, n.kept(t, "images"))
	}
	damaged := filepath.Join(uses, "damaged.json")
	if err := os.WriteFile(damaged, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.tearDown(t, a, "v") // the pod does not wait for what is wrong with others'
	n.mustSetUp(t, b, "v", n.at+"/b:1", "")
	n.tearDown(t, b, "v")
	if got := n.kept(t, "images"); len(got) != 4 || !strings.Contains(log.String(), damaged) {
		t.Errorf("beside a damaged record the images are %q, logged: %s", got, log.String())
	}
}

// Whatever a crash has left, nothing is taken for complete without its record.
func TestLeftoversAreMadeAnew(t *testing.T) {
	n := newNode(t, image.Config{UnusedFor: -1})
	n.registry.Add("a:1", file("f", "a"))
	pod := fakehost.Pod("a")
	n.mustSetUp(t, pod, "v", n.at+"/a:1", "")
	n.tearDown(t, pod, "v")
	store := n.GetPluginDir(image.PluginName)
	for _, kind := range []string{"layers", "images"} {
		for _, name := range n.kept(t, kind) {
			path := filepath.Join(store, kind, name)
			if strings.HasSuffix(name, ".json") {
				if err := os.WriteFile(path, nil, 0o600); err != nil { // as torn by a power cut
					t.Fatal(err)
				}
			} else if err := os.Truncate(filepath.Join(path, "f"), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.MkdirAll(filepath.Join(store, "tmp", "layers-1", "half"), 0o700); err != nil {
		t.Fatal(err)
	}
	n.restart(t)
	if got := content(t, filepath.Join(n.mustSetUp(t, pod, "v", n.at+"/a:1", ""), "f")); got != "a" {
		t.Errorf("the volume shows %q", got)
	}
	n.tearDown(t, pod, "v")
	if got := n.kept(t, "tmp"); len(got) > 0 {
		t.Errorf("tmp: %q", got)
	}
}

// A registry that never answers costs its own pod only, for a bounded time.
func TestSilentRegistry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, image.Config{Transport: silent{}, PullTimeout: time.Minute, Layouts: []string{layoutOf(t, file("f", "1"))}})
		done := make(chan error)
		go func() {
			_, err := n.setUp(t.Context(), fakehost.Pod("hung"), "v", "silent.test/web:1", "")
			done <- err
		}()
		synctest.Wait()
		n.mustSetUp(t, fakehost.Pod("other"), "v", "r.test/web:1", "")
		if err := <-done; !errors.Is(err, image.ErrImagePull) || !strings.Contains(err.Error(), "longer than 1m0s") || !strings.Contains(err.Error(), "silent.test") {
			t.Errorf("SetUp = %v", err)
		}
	})
}

func layoutOf(t *testing.T, layers ...ociimage.Layer) string {
	t.Helper()
	var r ociimage.Registry
	r.Add("web:1", layers...)
	dir := t.TempDir()
	r.WriteLayout(t, dir, "r.test")
	return dir
}

// silent takes requests, and never answers.
type silent struct{}

func (silent) RoundTrip(q *http.Request) (*http.Response, error) {
	<-q.Context().Done()
	return nil, &net.OpError{Op: "read", Err: context.Cause(q.Context())}
}

func TestLimits(t *testing.T) {
	n := newNode(t, image.Config{MaxBytes: 1 << 20, MaxEntries: 50, MaxLayers: 20})
	many := make([]ociimage.Layer, 10_000)
	for i := range many {
		many[i] = ociimage.Layer{Blob: []byte("x"), Title: "x", MediaType: "text/plain"}
	}
	n.registry.Add("layers:1", many...)
	n.registry.Add("bytes:1", ociimage.Layer{Entries: []ociimage.Entry{{Name: "zeros", Content: strings.Repeat("\x00", 2<<20)}}})
	n.registry.Add("together:1", file("a", strings.Repeat("a", 700<<10)), file("b", strings.Repeat("b", 700<<10)))
	n.registry.Add("declared:1", ociimage.Layer{Size: 1 << 40})
	for _, name := range []string{"layers", "bytes", "together", "declared"} {
		if _, err := n.setUp(t.Context(), fakehost.Pod(name), "v", n.at+"/"+name+":1", ""); !errors.Is(err, image.ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := n.kept(t, "images"); len(got) > 0 {
		t.Errorf("images: %q", got)
	}
}

func TestWrongDigests(t *testing.T) {
	n := newNode(t, image.Config{})
	other := ociimage.Digest([]byte("other"))
	n.registry.Add("digest:1", ociimage.Layer{Entries: []ociimage.Entry{{Name: "f"}}, Digest: other})
	n.registry.Add("diffid:1", ociimage.Layer{Entries: []ociimage.Entry{{Name: "g"}}, DiffID: other})
	right := n.registry.Add("right:1", file("h", "1"))
	for _, name := range []string{"digest", "diffid"} {
		if _, err := n.setUp(t.Context(), fakehost.Pod(name), "v", n.at+"/"+name+":1", ""); !errors.Is(err, image.ErrDigestMismatch) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// a layer that is there does not stand in for one with another diff id
	n.mustSetUp(t, fakehost.Pod("right"), "v", n.at+"/right@"+right, "")
	n.registry.Add("lie:1", ociimage.Layer{Entries: []ociimage.Entry{{Name: "h", Content: "1"}}, DiffID: other})
	if _, err := n.setUp(t.Context(), fakehost.Pod("lie"), "v", n.at+"/lie:1", ""); !errors.Is(err, image.ErrDigestMismatch) {
		t.Errorf("lie: %v", err)
	}
}

// imports is a container runtime with one image.
type imports struct {
	dir      string
	released []string
}

func (r *imports) PullImage(_ context.Context, q image.Request) (dir, ref string, err error) {
	if q.Reference != "web:1" || q.PullPolicy != v1.PullIfNotPresent {
		return "", "", image.ErrImagePull
	}
	return r.dir, "web@sha256:1", nil
}

func (r *imports) ReleaseImage(_ context.Context, podUID types.UID, name string) error {
	r.released = append(r.released, string(podUID)+"/"+name)
	return nil
}

func TestRuntime(t *testing.T) {
	r := &imports{dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(r.dir, "f"), []byte("of the runtime"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, image.Config{Runtime: r})
	pod := fakehost.Pod("a")
	if got := content(t, filepath.Join(n.mustSetUp(t, pod, "v", "web:1", ""), "f")); got != "of the runtime" {
		t.Errorf("the volume shows %q", got)
	}
	n.tearDown(t, pod, "v")
	if want := []string{string(pod.UID) + "/v"}; !slices.Equal(r.released, want) {
		t.Errorf("released %q", r.released)
	}
	if _, err := n.setUp(t.Context(), pod, "v", "other:1", ""); !errors.Is(err, image.ErrImagePull) {
		t.Errorf("another image: %v", err)
	}
	n.AssertTornDown(t)
}
