package main

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/volumemanager"
)

// The page shows the node's volumes, and whoever watches it is told of a new one.
func TestThePageShowsTheNodesVolumes(t *testing.T) {
	manager, err := volumemanager.New(volumemanager.Config{RootDir: t.TempDir(), NodeName: "node1", Objects: objects.NewStore(), Plugins: plugins.All(), Mounter: fakemount.New()})
	if err != nil {
		t.Fatal(err)
	}
	pages, stop := newPage("node1", manager)
	defer stop()
	server := httptest.NewServer(pages)
	defer server.Close()
	defer server.CloseClientConnections()
	open := func(path string) io.Reader {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { response.Body.Close() })
		if response.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", path, response.Status)
		}
		return response.Body
	}
	events := bufio.NewScanner(open("/watch?rows=none"))
	events.Scan() // the first one tells nothing new
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid-web"},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "i"}}, Volumes: []v1.Volume{{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}}}
	if err := manager.PutPod(pod); err != nil {
		t.Fatal(err)
	}
	for events.Scan() && !strings.HasPrefix(events.Text(), "data: ") {
	}
	if err := events.Err(); err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(open("/"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"node1", "web", "scratch"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page has no %q:\n%s", want, page)
		}
	}
}
