package version_test

import (
	"bytes"
	"encoding/json"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/podvol/podvol/examples/podvol/internal/version"
)

func TestOf(t *testing.T) {
	build := &debug.BuildInfo{
		GoVersion: "go1.26.1", Main: debug.Module{Version: "v0.3.0"},
		Deps:     []*debug.Module{{Path: "k8s.io/apimachinery", Version: "v0.36.0"}, {Path: "k8s.io/api", Version: "v0.35.2"}},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "0f5a82e"}, {Key: "vcs.time", Value: "2026-11-27T22:00:00Z"}, {Key: "vcs.modified", Value: "true"}},
	}
	platform := runtime.GOOS + "/" + runtime.GOARCH
	want := version.Info{Version: "v0.3.0", Commit: "0f5a82e", CommitTime: "2026-11-27T22:00:00Z", Modified: true, Go: "go1.26.1", Platform: platform, KubernetesAPI: "v1.35.2"}
	if got := version.Of(build); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	build.Deps[1].Replace = &debug.Module{Path: "example.com/api", Version: "v0.34.1"}
	if got := version.Of(build); got.KubernetesAPI != "v1.34.1" {
		t.Errorf("of a replaced module: %q", got.KubernetesAPI)
	}
	if got, want := version.Of(nil), (version.Info{Version: "unknown", Go: runtime.Version(), Platform: platform}); got != want {
		t.Errorf("without modules: %+v", got)
	}
}

func printed(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	c := version.Command(&out)
	c.SetArgs(args)
	if err := c.Execute(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// go test notes no modules, so that these are in TestOf only.
func TestCommand(t *testing.T) {
	text := printed(t)
	for _, want := range []string{"podvol      ", "commit      ", runtime.Version(), "Kubernetes  "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	var info version.Info
	if err := json.Unmarshal([]byte(printed(t, "-o", "json")), &info); err != nil || info.Version == "" || info.Go != runtime.Version() {
		t.Errorf("%v: %+v", err, info)
	}
	if text := printed(t, "-o", "yaml"); !strings.Contains(text, "platform: ") {
		t.Errorf("%s", text)
	}
}
