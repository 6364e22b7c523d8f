package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/volumemanager"
)

// selection is which volumes the flags mean.
type selection struct {
	all      bool
	names    map[types.NamespacedName]bool // of pods that were asked for by name
	uids     map[types.UID]bool            // that were asked for
	pods     map[types.UID]*v1.Pod         // of the manifests that were asked for; nil: there are none
	nodeName string                        // if it was given, or the manifests say
}

// has reports whether a volume is meant.
func (s *selection) has(v volumemanager.VolumeStatus) bool {
	switch {
	case s.all:
		return true
	case s.pods != nil:
		return s.pods[v.PodUID] != nil
	}
	return s.names[v.Pod] || s.uids[v.PodUID]
}

func selectPods(ctx context.Context, s streams, o unmountOptions) (*selection, error) {
	selected := &selection{all: o.all, names: make(map[types.NamespacedName]bool), uids: make(map[types.UID]bool), nodeName: o.nodeName}
	for _, value := range o.pods {
		name, err := parsePod(value)
		if err != nil {
			return nil, err
		}
		selected.names[name] = true
	}
	for _, uid := range o.uids {
		selected.uids[types.UID(uid)] = true
	}
	if len(o.files) == 0 {
		return selected, nil
	}
	set, pods, err := loadPods(ctx, s, o.files, o.nodeName, "")
	if err != nil {
		return nil, err
	}
	selected.nodeName, selected.pods = set.NodeName, make(map[types.UID]*v1.Pod)
	missing := maps.Clone(selected.names)
	for _, pod := range pods {
		name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		if delete(missing, name); len(selected.names) == 0 || selected.names[name] {
			selected.pods[pod.UID] = pod
		}
	}
	for _, name := range sortedNames(missing) {
		return nil, usagef("the manifests have no pod %s for node %s", name, set.NodeName)
	}
	return selected, nil
}

// ambiguous refuses a name that several pods have, as those of several nodes:
// nobody has said which is meant.
func (s *selection) ambiguous(mounted []volumemanager.VolumeStatus) error {
	if s.pods != nil {
		return nil // whose UIDs are known
	}
	shared := sharedNames(mounted)
	for _, name := range sortedNames(s.names) {
		if shared[name] {
			return usagef("--pod %s is several pods: say which with --uid: %s", name, strings.Join(uidsOf(mounted, name), ", "))
		}
	}
	return nil
}

// absent says what was asked for by name and has nothing mounted, and which pods of
// the manifests are not mounted though others of their names are: they were mounted
// for another node.
func (s *selection) absent(mounted []volumemanager.VolumeStatus) (texts []string) {
	for _, name := range sortedNames(s.names) {
		if s.pods == nil && len(uidsOf(mounted, name)) == 0 {
			texts = append(texts, fmt.Sprintf("pod %s has nothing mounted", name))
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(s.uids)) {
		if !hasRows(mounted, uid) {
			texts = append(texts, fmt.Sprintf("no pod with UID %s has anything mounted", uid))
		}
	}
	for _, pod := range sortedPods(s.pods) {
		name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		if hasRows(mounted, pod.UID) {
			continue
		}
		if others := uidsOf(mounted, name); len(others) > 0 {
			texts = append(texts, fmt.Sprintf("pod %s of node %s has nothing mounted, but another pod of that name has, with UID %s: say --node as mount did, or --uid",
				name, s.nodeName, strings.Join(others, ", ")))
		} else if s.names[name] {
			texts = append(texts, fmt.Sprintf("pod %s of node %s has nothing mounted", name, s.nodeName))
		}
	}
	return texts
}

// tellMounted says what is left for whoever did not find what he asked for.
func tellMounted(w io.Writer, rootDir string, left []volumemanager.VolumeStatus) {
	var pods []string
	for _, v := range left {
		if name := rowOf(v).Pod; !slices.Contains(pods, name) {
			pods = append(pods, name)
		}
	}
	if len(pods) == 0 {
		return
	}
	slices.Sort(pods)
	fmt.Fprintf(w, "Mounted below %s are volumes of %s; %s status shows them.\n", rootDir, few(pods), shellJoin(programName(os.Args[0])))
}

// hasRows reports whether anything of a pod is mounted, or may be.
func hasRows(rows []volumemanager.VolumeStatus, uid types.UID) bool {
	return slices.ContainsFunc(rows, func(v volumemanager.VolumeStatus) bool { return v.PodUID == uid })
}

// sharedNames are the names that several pods have.
func sharedNames(rows []volumemanager.VolumeStatus) map[types.NamespacedName]bool {
	first, shared := make(map[types.NamespacedName]types.UID), make(map[types.NamespacedName]bool)
	for _, v := range rows {
		if uid, known := first[v.Pod]; known && uid != v.PodUID && v.Pod.Name != "" {
			shared[v.Pod] = true
		}
		first[v.Pod] = v.PodUID
	}
	return shared
}

// uidsOf are the UIDs of the pods of a name.
func uidsOf(rows []volumemanager.VolumeStatus, name types.NamespacedName) (uids []string) {
	for _, v := range rows {
		if v.Pod == name && !slices.Contains(uids, string(v.PodUID)) {
			uids = append(uids, string(v.PodUID))
		}
	}
	slices.Sort(uids)
	return uids
}

func sortedNames(names map[types.NamespacedName]bool) []types.NamespacedName {
	return slices.SortedFunc(maps.Keys(names), func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
}
