package nodeserver

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/examples/nodehttp/nodeevents"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/nodeagent"
	"github.com/podvol/podvol/volume/volumemanager"
)

const manifest = `apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec:
  volumes:
  - {name: bad, secret: {secretName: missing}}
  - {name: data, persistentVolumeClaim: {claimName: data}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: shop}
spec: {storageClassName: "", accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv}
spec: {storageClassName: "", accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, nfs: {server: 10.244.1.4, path: /real/x}}
`

// The events of an agent, about pods and about claims, are asked for as other processes ask.
func TestEventsOfAnAgent(t *testing.T) {
	temp := t.TempDir()
	if err := os.WriteFile(filepath.Join(temp, "web.yaml"), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	news := make(chan struct{}, 1)
	v := &Views{Rename: func(text string) string { return strings.ReplaceAll(text, "missing", "renamed") }}
	config := v.Observe(nodeagent.Config{Dir: temp, RootDir: filepath.Join(temp, "root"), NodeName: "node1", Mounter: fakemount.New(),
		Notice: func(string) {}, Status: func(volumemanager.VolumeStatus) error { return nil }})
	changed := v.events.Changed
	v.events.Changed = func() {
		changed()
		select {
		case news <- struct{}{}:
		default:
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	agent, err := nodeagent.Start(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	stopServing := v.Serve(ctx, agent, config)
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	found := make(map[string]string)
	for found["Pod FailedMount"] == "" || found["PersistentVolumeClaim Bound"] == "" || found["PersistentVolume Bound"] == "" {
		<-news
		all := v.recent()
		if os.Geteuid() == 0 { // who has a socket
			if all, err = Events(t.Context(), config.RootDir); err != nil {
				t.Fatal(err)
			}
		}
		for _, e := range all {
			found[e.Kind+" "+e.Reason] = e.Message
			checkTimes(t, e)
		}
	}
	if text := found["Pod FailedMount"]; !strings.Contains(text, "renamed") || strings.Contains(text, "missing") {
		t.Errorf("the pod's event is %q", text)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	stopServing()
	if err := agent.Close(); err != nil {
		t.Error(err)
	}
}

func checkTimes(t *testing.T, e nodeevents.Event) {
	t.Helper()
	if e.Count < 1 || e.First.IsZero() || e.Last.Before(e.First) || e.Name == "" {
		t.Errorf("%+v", e)
	}
}
