package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

type object = map[string]any

// mix is what a pod mounts, by the names of its volumes.
type mix struct {
	name    string
	volumes map[string]object
	mount   object // further fields of each mount
	pod     object // further fields of the pod's spec
}

// mixes are ten pods with other volumes each. Only the second and the projected one have a token.
func mixes() []mix {
	configMap, secret := object{"configMap": object{"name": "files"}}, object{"secret": object{"secretName": "files"}}
	downward := []object{{"path": "labels", "fieldRef": object{"fieldPath": "metadata.labels"}}}
	projected := object{"projected": object{"sources": []object{
		{"configMap": object{"name": "files"}}, {"secret": object{"name": "files", "items": []object{{"key": "a", "path": "secret"}}}},
		{"downwardAPI": object{"items": downward}}, {"serviceAccountToken": object{"path": "token"}},
	}}}
	memory := object{"emptyDir": object{"medium": "Memory", "sizeLimit": "1Mi"}}
	host := object{"hostPath": object{"path": "/tmp/host", "type": "DirectoryOrCreate"}}
	one := func(volume object) map[string]object { return map[string]object{"a": volume} }
	return []mix{
		{name: "no volume"},
		{name: "token", pod: object{"automountServiceAccountToken": true}},
		{name: "emptyDir", volumes: one(object{"emptyDir": object{}})},
		{name: "emptyDir in memory", volumes: one(memory)},
		{name: "configMap", volumes: one(configMap)},
		{name: "secret", volumes: one(secret)},
		{name: "projected, four sources", volumes: one(projected)},
		{name: "hostPath", volumes: one(host)},
		{name: "emptyDir, subPath and fsGroup", volumes: one(object{"emptyDir": object{}}), mount: object{"subPath": "x/y"},
			pod: object{"securityContext": object{"fsGroup": 2000}}},
		{name: "six volumes", volumes: map[string]object{"a": {"emptyDir": object{}}, "b": memory, "c": configMap, "d": secret, "e": host,
			"f": {"downwardAPI": object{"items": downward}}}},
	}
}

// podOn returns the mix as a pod on a node.
func (m mix) podOn(node, name string) object {
	container := object{"name": "pause", "image": pauseImage, "imagePullPolicy": "Never"}
	spec := object{"nodeName": node, "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 5, "containers": []object{container}}
	maps.Copy(spec, m.pod)
	var volumes, mounts []object
	for _, name := range slices.Sorted(maps.Keys(m.volumes)) {
		volume, mount := object{"name": name}, object{"name": name, "mountPath": "/" + name}
		maps.Copy(volume, m.volumes[name])
		maps.Copy(mount, m.mount)
		volumes, mounts = append(volumes, volume), append(mounts, mount)
	}
	spec["volumes"], container["volumeMounts"] = volumes, mounts
	return object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": name, "labels": object{"app": name}}, "spec": spec}
}

// timing is how long a pod took from its creation to Running, and from its deletion until
// its object had gone.
type timing struct{ running, gone time.Duration }

// timer measures pods by the API alone, as a user sees them.
type timer struct {
	client *http.Client
	url    string
}

// timings runs each mix several times on each node, one pod at a time and in turn, and
// prints the medians, in milliseconds.
func (t timer) timings(ctx context.Context, w io.Writer, o options) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "milliseconds, medians of ", o.Timings)
	for number := 1; number <= o.Nodes; number++ {
		fmt.Fprintf(table, "\t%s running\tgone", node{number: number}.kind(o))
	}
	fmt.Fprintln(table)
	if err := t.files(ctx); err != nil {
		return err
	}
	for _, m := range mixes() {
		measured := make(map[int][]timing)
		for round := range o.Timings {
			for number := 1; number <= o.Nodes; number++ {
				got, err := t.pod(ctx, m.podOn(node{number: number}.name(), fmt.Sprintf("pod-%d", round)))
				if err != nil {
					return fmt.Errorf("%s on %s: %w", m.name, node{number: number}.kind(o), err)
				}
				measured[number] = append(measured[number], got)
			}
		}
		fmt.Fprint(table, m.name)
		for number := 1; number <= o.Nodes; number++ {
			fmt.Fprintf(table, "\t%d\t%d", median(measured[number], func(t timing) time.Duration { return t.running }).Milliseconds(),
				median(measured[number], func(t timing) time.Duration { return t.gone }).Milliseconds())
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
}

func median(of []timing, what func(timing) time.Duration) time.Duration {
	var all []time.Duration
	for _, t := range of {
		all = append(all, what(t))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// files makes the objects that the pods mount.
func (t timer) files(ctx context.Context) error {
	data := object{"a": "YQ==", "b": "Yg=="}
	for kind, fields := range map[string]object{
		"configmaps": {"kind": "ConfigMap", "data": data},
		"secrets":    {"kind": "Secret", "data": data},
	} {
		maps.Copy(fields, object{"apiVersion": "v1", "metadata": object{"name": "files"}})
		if _, err := t.ask(ctx, http.MethodPost, kind, fields); err != nil {
			return err
		}
	}
	return nil
}

// pod creates a pod, waits until it runs, deletes it, and waits until it has gone.
func (t timer) pod(ctx context.Context, pod object) (timing, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	name := pod["metadata"].(object)["name"].(string)
	events, stop, err := t.watch(ctx, name)
	if err != nil {
		return timing{}, err
	}
	defer stop()
	start := time.Now()
	if _, err := t.ask(ctx, http.MethodPost, "pods", pod); err != nil {
		return timing{}, err
	}
	if err := await(events, func(e event) bool { return e.Object.Status.Phase == "Running" }); err != nil {
		return timing{}, fmt.Errorf("not running: %w", err)
	}
	running := time.Since(start)
	start = time.Now()
	if _, err := t.ask(ctx, http.MethodDelete, "pods/"+name, nil); err != nil {
		return timing{}, err
	}
	if err := await(events, func(e event) bool { return e.Type == "DELETED" }); err != nil {
		return timing{}, fmt.Errorf("not gone: %w", err)
	}
	return timing{running: running, gone: time.Since(start)}, nil
}

// event is what a test reads of a watch.
type event struct {
	Type   string
	Object struct{ Status struct{ Phase string } }
}

// watch follows one pod.
func (t timer) watch(ctx context.Context, name string) (*json.Decoder, func(), error) {
	body, err := t.ask(ctx, http.MethodGet, "pods?watch=true&fieldSelector=metadata.name="+name, nil)
	if err != nil {
		return nil, nil, err
	}
	return json.NewDecoder(body), func() { _ = body.Close() }, nil
}

func await(events *json.Decoder, is func(event) bool) error {
	for {
		var e event
		if err := events.Decode(&e); err != nil {
			return err
		}
		if is(e) {
			return nil
		}
	}
}

// ask sends a request about something in namespace "default". The body is the caller's
// to close where it is a watch's; of others it has been read.
func (t timer) ask(ctx context.Context, method, path string, content any) (io.ReadCloser, error) {
	sent, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	if content == nil {
		sent = nil
	}
	request, err := http.NewRequestWithContext(ctx, method, t.url+"/api/v1/namespaces/default/"+path, bytes.NewReader(sent))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := t.client.Do(request)
	if err != nil {
		return nil, err
	}
	if method == http.MethodGet && response.StatusCode == http.StatusOK {
		return response.Body, nil
	}
	defer response.Body.Close()
	said, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("%s %s: %s", method, path, strings.TrimSpace(string(said)))
	}
	return http.NoBody, err
}
