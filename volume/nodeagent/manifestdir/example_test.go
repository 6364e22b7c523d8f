package manifestdir_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/podvol/podvol/volume/nodeagent/manifestdir"
)

// A loop of an agent: whenever the watch tells of a change, and once more after
// the time that Scan returns, the wanted pods are set up. Others are torn down
// only once the directory is complete.
func Example() {
	dir, err := os.MkdirTemp("", "manifests")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	watch, err := manifestdir.NewWatch(dir)
	if err != nil {
		panic(err)
	}
	defer watch.Close()
	d := manifestdir.New(manifestdir.Config{
		Dir: dir, KnownFile: filepath.Join(dir, ".known"), NodeName: "node1",
		Notice: func(sentence string) { fmt.Println(sentence) },
	})
	text := "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {volumes: [{name: scratch, emptyDir: {}}]}}"
	if err := os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(text), 0o600); err != nil {
		panic(err)
	}
	<-watch.Changed()
	again := d.Scan()
	for ref, pod := range d.Wanted().Pods {
		fmt.Println(ref, len(pod.Spec.Volumes))
	}
	fmt.Println("complete:", d.Complete(), "scan again:", again > 0)
	// Output:
	// Pod default/web 1
	// complete: false scan again: true
}
