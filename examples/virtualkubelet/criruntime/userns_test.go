package criruntime

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podvol/podvol/examples/virtualkubelet/podlife"
)

// The ids that the machine sets aside are those that a kubelet would take.
func TestSetAside(t *testing.T) {
	const none = "-"
	for name, test := range map[string]struct {
		users, groups string
		first, pods   uint32
		refused       bool
	}{
		"nothing":                 {"", "", 65536, 110, false},
		"no files":                {none, none, 65536, 110, false},
		"other users' only":       {"joe:100000:65536\n", "joe:100000:65536\n", 65536, 110, false},
		"the kubelet's":           {"joe:1:2\nkubelet:131072:655360\n", "kubelet:131072:655360\n", 131072, 10, false},
		"a rest that is no range": {"kubelet:131072:196607\n", "kubelet:131072:196607\n", 131072, 2, false},
		"no groups":               {"kubelet:131072:655360\n", "", 0, 0, true},
		"other groups":            {"kubelet:131072:655360\n", "kubelet:196608:655360\n", 0, 0, true},
		"two ranges":              {"kubelet:131072:65536\nkubelet:655360:65536\n", "kubelet:131072:65536\nkubelet:655360:65536\n", 0, 0, true},
		"not at a multiple":       {"kubelet:100000:655360\n", "kubelet:100000:655360\n", 0, 0, true},
		"too few":                 {"kubelet:131072:1000\n", "kubelet:131072:1000\n", 0, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range map[string]string{"/subuid": test.users, "/subgid": test.groups} {
				if text == none {
					continue
				}
				if err := os.WriteFile(dir+file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			first, pods, err := setAside(dir+"/subuid", dir+"/subgid")
			if first != test.first || pods != test.pods || (err != nil) != test.refused {
				t.Errorf("got %d, %d, %v", first, pods, err)
			}
		})
	}
}

func ownUsers(uid string) *v1.Pod {
	pod := &v1.Pod{Spec: v1.PodSpec{HostUsers: new(false)}}
	pod.UID = types.UID(uid)
	return pod
}

// Each pod has ids of its own, in the file of a kubelet's. They are free again when that has
// gone with the pod, and nobody gets new ones while it is not known whose others are.
func TestIDsOfPods(t *testing.T) {
	root := t.TempDir()
	start := func() *Runtime {
		return &Runtime{Config: Config{Dir: root + "/containers", RootDir: root}, has: features{userNamespaces: true},
			ids: func() (uint32, uint32, error) { return 131072, 3, nil }}
	}
	r := start()
	first := func(r *Runtime, uid string) uint32 {
		t.Helper()
		o, err := r.MountOptions(t.Context(), ownUsers(uid))
		if err != nil || len(o.UIDMappings) != 1 || len(o.GIDMappings) != 1 || o.UIDMappings[0] != o.GIDMappings[0] || o.UIDMappings[0].Size != 65536 || o.UIDMappings[0].ContainerID != 0 {
			t.Fatalf("%s: %v, %v", uid, o, err)
		}
		return o.UIDMappings[0].HostID
	}
	if err := os.MkdirAll(root+"/pods", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(root+"/pods/stray", nil, 0o600); err != nil { // which is no pod's
		t.Fatal(err)
	}
	for i, uid := range []string{"a", "b"} {
		if got := first(r, uid); got != 131072+uint32(i)*65536 {
			t.Errorf("%s begins at %d", uid, got)
		}
	}
	text, err := os.ReadFile(root + "/pods/b/userns")
	if want := `{"uidMappings":[{"hostId":196608,"containerId":0,"length":65536}],"gidMappings":[{"hostId":196608,"containerId":0,"length":65536}]}`; err != nil || string(text) != want {
		t.Errorf("its file has %s, %v", text, err)
	}
	r = start()
	if a, c := first(r, "a"), first(r, "c"); a != 131072 || c != 262144 {
		t.Errorf("after a new start a begins at %d, and c at %d", a, c)
	}
	if _, err := r.MountOptions(t.Context(), ownUsers("d")); err == nil || !strings.Contains(err.Error(), "are taken") {
		t.Errorf("the fourth of three: %v", err)
	}
	if o, err := r.MountOptions(t.Context(), &v1.Pod{}); err != nil || o.UIDMappings != nil {
		t.Errorf("a pod with the machine's users: %v, %v", o, err)
	}
	if left, err := r.podsWithFiles(); err != nil || len(left) != 3 {
		t.Errorf("to be removed one day: %q, %v", left, err)
	}
	if err := r.removeKubelets("b", nil); err != nil {
		t.Fatal(err)
	}
	if got := first(r, "d"); got != 196608 {
		t.Errorf("d begins at %d", got)
	}
	if err := os.WriteFile(filepath.Join(root, "pods/a/userns"), []byte(`{"uidMappings":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []string{"a", "e"} {
		if _, err := r.MountOptions(t.Context(), ownUsers(uid)); err == nil || !strings.Contains(err.Error(), "pods/a/userns") {
			t.Errorf("%s beside a damaged file: %v", uid, err)
		}
	}
}

// Sandbox, containers and the node's own files have the pod's ids. A runtime that knows no user
// namespaces is told nothing of them.
func TestIDsInCRI(t *testing.T) {
	maps := &idMaps{UIDs: []idRange{{HostID: 65536, Length: 65536}}, GIDs: []idRange{{HostID: 65536, Length: 65536}}}
	r := &Runtime{Config: Config{Dir: t.TempDir()}, has: features{userNamespaces: true}}
	l := podlife.Launch{Pod: ownUsers("a"), Spec: &v1.Container{Name: "main"}}
	all := []*cri.UserNamespace{r.namespaces(l.Pod, maps).UsernsOptions, r.sandboxConfig(l.Pod, maps, 0).Linux.SecurityContext.NamespaceOptions.UsernsOptions}
	security, err := r.security(l, maps, &cri.Image{})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range append(all, security.NamespaceOptions.UsernsOptions) {
		if u.GetMode() != cri.NamespaceMode_POD || len(u.Uids) != 1 || u.Uids[0].HostId != 65536 || len(u.Gids) != 1 || u.Gids[0].Length != 65536 {
			t.Errorf("got %v", u)
		}
	}
	for _, m := range r.ownMounts(l, maps) {
		if len(m.UidMappings) != 1 || m.UidMappings[0].HostId != 65536 || len(m.GidMappings) != 1 {
			t.Errorf("got %v", m)
		}
	}
	if u := r.namespaces(&v1.Pod{}, nil).UsernsOptions; u.GetMode() != cri.NamespaceMode_NODE || len(u.Uids) > 0 {
		t.Errorf("a pod with the machine's users: %v", u)
	}
	r.has.userNamespaces = false
	if u := r.namespaces(&v1.Pod{}, nil).UsernsOptions; u != nil {
		t.Errorf("an older runtime is told %v", u)
	}
}
