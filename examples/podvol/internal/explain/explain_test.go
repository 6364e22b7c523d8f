package explain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/podvol/podvol/examples/podvol/internal/nodeserver"
	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume/volumemanager"
)

// row is a volume of a pod.
func row(pod, uid, volume string) nodeserver.Volume {
	namespace, name, _ := strings.Cut(pod, "/")
	return nodeserver.Volume{Namespace: namespace, Pod: name, PodUID: uid, Volume: volume, State: "mounted"}
}

func TestChoose(t *testing.T) {
	all := []nodeserver.Volume{
		row("shop/web-0", "u1", "data"), row("shop/web-0", "u1", "config"),
		row("shop/api", "u2", "data"), row("lab/api", "u3", "data"),
		row("db/db", "u4", "db"), row("db/other", "u5", "x"), row("other/db", "u6", "other"),
		{PodUID: "stray", Volume: "left"},
	}
	all[6].Node = "node2"
	for word, want := range map[string]string{
		"web-0": "u1/data u1/config", "shop/web-0": "u1/data u1/config", "u1": "u1/data u1/config",
		"web-0/data": "u1/data", "shop/web-0/config": "u1/config", "u1/config": "u1/config",
		"shop/api": "u2/data", "lab/api/data": "u3/data", "stray": "stray/left", "stray/left": "stray/left",
		"other/db": "u6/other", "db/db/db": "u4/db",
	} {
		chosen, err := choose(all, word)
		var got []string
		for _, v := range chosen {
			got = append(got, v.PodUID+"/"+v.Volume)
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %v, %v; want %s", word, got, err, want)
		}
	}
	for word, want := range map[string]string{
		"api":  "api is several pods; say which by NAMESPACE/NAME or by UID:\n  shop/api (UID u2)\n  lab/api (UID u3)",
		"db":   "other/db (UID u6, node node2)",
		"wbe":  "no pod wbe has volumes here",
		"web":  `did you mean "web-0"?`,
		"we-0": `did you mean "web-0"?`, "shop/web0": `did you mean "shop/web-0"?`,
		"web-0/dat":       `no volume of that name: web-0/dat; pod web-0 has config, data; did you mean "web-0/data"?`,
		"lab/none":        "no pod lab/none has volumes here; podvol status shows those that have",
		"other/none":      "no volume of that name: other/none; pod other has x",
		"shop/web-0/date": `did you mean "shop/web-0/data"?`, "shop/web-0/con": `did you mean "shop/web-0/config"?`,
	} {
		if chosen, err := choose(all, word); err == nil || !strings.Contains(err.Error(), want) || chosen != nil {
			t.Errorf("%s: %v, %v; want %s", word, chosen, err, want)
		}
	}
}

func TestVolumesAreNotMeantByTheirPodsName(t *testing.T) {
	all := []nodeserver.Volume{row("shop/web-0", "u1", "data"), row("shop/web-0", "u1", "pw")}
	for _, word := range []string{"shop/web-0/nope", "web-0/nope", "u1/nope"} {
		if _, err := choose(all, word); err == nil || !strings.HasSuffix(err.Error(), " has data, pw") {
			t.Errorf("%s: %v", word, err)
		}
	}
}

func TestWhoElseUsesTheSource(t *testing.T) {
	claim, nfs, inline, config, scratch := row("shop/web", "u1", "data"), row("shop/web", "u1", "share"), row("lab/a", "u2", "share"), row("shop/web", "u1", "config"), row("shop/web", "u1", "tmp")
	claim.Claim, claim.PersistentVolume = "shop/data", "pv1"
	nfs.Plugin, nfs.Source = "kubernetes.io/nfs", "nas1:/x"
	inline.Plugin, inline.Source = "kubernetes.io/nfs", "nas1:/x"
	config.Plugin, config.Source = "kubernetes.io/configmap", "configmap web"
	scratch.Plugin, scratch.Source = "kubernetes.io/empty-dir", "disk"
	in := func(v nodeserver.Volume, namespace, pod string) nodeserver.Volume {
		v.Namespace, v.Pod, v.PodUID = namespace, pod, "of "+pod
		return v
	}
	disk, own, flex := row("shop/web", "u1", "disk"), row("shop/web", "u1", "own"), row("shop/web", "u1", "flex")
	disk.Plugin, disk.Source = "kubernetes.io/csi", "disk.example.com:vol-1"
	own.Plugin, own.Source = "kubernetes.io/csi", "secrets.example.com" // inline: each pod has its own
	flex.Plugin, flex.Source = "kubernetes.io/flexvolume", "example.com/nbd"
	all := []nodeserver.Volume{claim, nfs, inline, config, scratch, disk, own, flex, in(disk, "shop", "b"), in(own, "shop", "b"), in(flex, "shop", "b"), in(claim, "shop", "b"), in(config, "shop", "b"), in(config, "lab", "c"), in(scratch, "shop", "b")}
	for _, tc := range []struct {
		of   nodeserver.Volume
		want []string
	}{
		{claim, []string{"shop/b (volume data)"}}, {nfs, []string{"lab/a (volume share)"}}, {config, []string{"shop/b (volume config)"}}, {scratch, nil},
		{disk, []string{"shop/b (volume disk)"}}, {own, nil}, {flex, nil},
	} {
		if got := alsoUsing(all, tc.of); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.of.Volume, got, tc.want)
		}
	}
}

// failing is a volume about which there is much to say; its names are hostile.
func failing(now time.Time) (knowledge, nodeserver.Volume) {
	v := row("shop/web", "u1", "data\x1b[2J")
	v.Plugin, v.Source, v.State, v.Wanted = "kubernetes.io/csi", "disk.example.com:vol-1", "failed", true
	v.Since, v.Operation, v.Began, v.Progress = now.Add(-3*time.Minute), "set-up", now.Add(-12*time.Second), &nodeserver.Progress{Doing: "unpacking", Done: 3, Total: 10}
	v.Failures, v.NextRetry = 2, now.Add(90*time.Second)
	v.Error, v.Cause, v.Advice, v.Uncertain = "mount failed\nOutput: no\x1b]0;title\a\nstart the server", "ConnectionRefused", "start the server", true
	v.WaitsFor, v.Path = "server nas1 to answer", "/root/pods/u1/volumes/x/data"
	v.Server = &nodeserver.Health{Name: "nas1", Since: now.Add(-time.Hour), Failures: 3, RetryAt: now.Add(time.Minute), Error: "refused"}
	return knowledge{
		rootDir: "/root", volumes: []nodeserver.Volume{v},
		recorded: []volumemanager.VolumeStatus{{PodUID: "u1", Pod: types.NamespacedName{Namespace: "shop", Name: "web"}, Volume: v.Volume, State: volumemanager.StateMounted, Since: now.Add(-4 * time.Minute)}},
		drivers: []nodeserver.Driver{{Driver: "disk.example.com", Version: "1.2", Socket: "/run/d.sock", State: nodeserver.Silent, Error: "no answer", Calls: []nodeserver.Call{
			{Method: "NodePublishVolume", Volume: "vol-1", Seconds: 12}, {Method: "NodeStageVolume", Volume: "vol-2", Seconds: 12}}}},
		mounts: map[string]mount.Entry{v.Path: {Target: v.Path, Source: "https://me:s3cr3t@nas1/dav", FSType: "fuse.davfs", Options: []string{"ro"}, SuperOptions: []string{"user=me", "password=s3cr3t"}}},
	}, v
}

func TestEverythingIsSaid(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	k, v := failing(now)
	e := k.explain(v)
	var out bytes.Buffer
	if err := show(&out, []Explanation{e}, nil, "text", now); err != nil {
		t.Fatal(err)
	}
	got := out.String()
	for _, want := range []string{
		"Pod:       shop/web\n", "UID:       u1\n", "Known by:  podvol run-node, which runs\n",
		`Volume data\u001b[2J:` + "\n",
		"  Wanted:        yes, its pod is declared with it\n",
		"  State:         failed since 2026-01-02T03:01:05Z (3m ago)\n",
		"  Under way:     set-up for 12s, unpacking: 3 of 10\n",
		"  Waits for:     server nas1 to answer\n",
		"  Error:         mount failed\n                 Output: no" + `\u001b]0;title\u0007` + "\n                 (it may have left something behind)\n",
		"  Cause:         ConnectionRefused\n", "  Advice:        start the server\n",
		"  Next attempt:  in 1m30s after 2 failures\n",
		"  Source:        disk.example.com:vol-1\n", "  Path:          /root/pods/u1/volumes/x/data\n",
		"  Mounted:       fuse.davfs from https://<masked>@nas1/dav, ro; file system user=me,password=<masked>\n",
		"  Record:        in /root/podvol/records, set up at 2026-01-02T03:00:05Z\n",
		"  Server:        nas1 has not answered since 2026-01-02T02:04:05Z (60m ago), 3 failures; it is tried again in 1m0s\n                 refused\n",
		"  Driver:        disk.example.com 1.2 at /run/d.sock: silent\n                 NodePublishVolume is under way for 12s\n                 no answer\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("it does not say\n%s", want)
		}
	}
	if strings.Contains(got, "s3cr3t") || strings.Contains(got, "vol-2") || strings.Contains(got, "NodeStageVolume") || t.Failed() {
		t.Errorf("it says\n%s", got)
	}
}

func TestOtherProgramsReadTheSame(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	k, v := failing(now)
	for format, read := range map[string]func([]byte, any) error{"json": json.Unmarshal, "yaml": func(text []byte, to any) error { return yaml.Unmarshal(text, to) }} {
		var out bytes.Buffer
		var got []map[string]any
		err := show(&out, []Explanation{k.explain(v)}, nil, format, now)
		if err := errors.Join(err, read(out.Bytes(), &got)); err != nil || len(got) != 1 {
			t.Fatalf("%s: %v\n%s", format, err, out.String())
		}
		for key, want := range map[string]any{"knownBy": "podvol run-node", "pod": "web", "waitsFor": "server nas1 to answer", "advice": "start the server", "record": "in /root/podvol/records, set up at 2026-01-02T03:00:05Z"} {
			if got[0][key] != want {
				t.Errorf("%s: %s is %v, want %v", format, key, got[0][key], want)
			}
		}
		if strings.Contains(out.String(), "s3cr3t") {
			t.Errorf("%s", out.String())
		}
	}
}

// What is not known without a node is not said.
func TestRecordsAloneSayLess(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	k, _ := failing(now)
	k.unanswered, k.drivers, k.mounts = fmt.Errorf("/root: %w", nodeserver.ErrNoNode), nil, nil
	volumes, err := nodeserver.VolumesOf(append(k.recorded, volumemanager.VolumeStatus{PodUID: "stray", Volume: "left", State: volumemanager.StateFailed, Found: true, Err: volumemanager.ErrNoRecord}))
	if err != nil {
		t.Fatal(err)
	}
	k.volumes, k.recorded = volumes, append(k.recorded, volumemanager.VolumeStatus{PodUID: "stray", Volume: "left", Found: true, Err: volumemanager.ErrNoRecord})
	for i, want := range [][]string{{"no podvol run-node was asked, so what is wanted", "Pod:       shop/web"}, {"Pod:       not known", "none: it is known by its directory alone"}} {
		var out bytes.Buffer
		if err := show(&out, []Explanation{k.explain(volumes[i])}, nil, "text", now); err != nil {
			t.Fatal(err)
		}
		for _, text := range want {
			if !strings.Contains(out.String(), text) {
				t.Errorf("it does not say %q:\n%s", text, out.String())
			}
		}
		k.unanswered = errors.New("podvol run-node answers 503 Service Unavailable") // as status says it
		if text := nodeserver.KnownBy(k.unanswered); textOf([]Explanation{k.explain(volumes[i])}, now)[3].Text != text+", so what is wanted and what is under way is not known" {
			t.Errorf("it does not say %q", text)
		}
		if strings.Contains(out.String(), "Wanted") || strings.Contains(out.String(), "Under way") {
			t.Errorf("it says\n%s", out.String())
		}
	}
}
