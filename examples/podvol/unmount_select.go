package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/podvol/internal/choice"
	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/volume/volumemanager"
)

// selection is which volumes the flags mean.
type selection struct {
	all      bool
	names    map[types.NamespacedName]bool // of pods that were asked for by name
	uids     map[types.UID]bool            // that were asked for
	pods     map[types.UID]*v1.Pod         // of the manifests that were asked for; nil: there are none
	only     types.NodeName                // pods of this node alone; empty: of all
	nodeName string                        // if it was given, or the manifests say
	chosen   map[types.UID]bool            // of mounted volumes; see choose
}

// has reports whether a volume is meant.
func (s *selection) has(v volumemanager.VolumeStatus) bool {
	switch {
	case !s.onNode(v):
		return false
	case s.all:
		return true
	case s.pods != nil:
		return s.pods[v.PodUID] != nil
	}
	return s.names[v.Pod] || s.uids[v.PodUID]
}

// onNode reports whether a volume is of the node that was asked for. Where its record
// does not say, a manifest's pod is known by its UID, which tells nodes apart mostly;
// a pod that is known by its name alone may be another node's.
func (s *selection) onNode(v volumemanager.VolumeStatus) bool {
	return s.only == "" || v.NodeName == s.only || v.NodeName == "" && s.pods != nil
}

// choose returns the rows of the pods that are meant, whole: pods are torn down so.
func (s *selection) choose(mounted []volumemanager.VolumeStatus) (rows []volumemanager.VolumeStatus) {
	s.chosen = make(map[types.UID]bool)
	for _, v := range mounted {
		s.chosen[v.PodUID] = s.chosen[v.PodUID] || s.has(v)
	}
	return slices.DeleteFunc(slices.Clone(mounted), s.leaves)
}

// leaves reports whether a volume was not chosen.
func (s *selection) leaves(v volumemanager.VolumeStatus) bool { return !s.chosen[v.PodUID] }

// owns reports whether claims that were made for a pod go: of which node that was they
// do not say.
func (s *selection) owns(pod types.NamespacedName, uid types.UID) bool {
	return s.chosen[uid] || s.has(volumemanager.VolumeStatus{Pod: pod, PodUID: uid})
}

func selectPods(ctx context.Context, s streams, o unmountOptions) (*selection, error) {
	selected := &selection{all: o.all, names: make(map[types.NamespacedName]bool), uids: make(map[types.UID]bool), only: types.NodeName(o.nodeName), nodeName: o.nodeName}
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
// it was not said which is meant.
func (s *selection) ambiguous(mounted []volumemanager.VolumeStatus) error {
	if s.pods != nil {
		return nil // whose UIDs are known
	}
	here := slices.DeleteFunc(slices.Clone(mounted), func(v volumemanager.VolumeStatus) bool { return !s.onNode(v) })
	shared := sharedNames(here)
	for _, name := range sortedNames(s.names) {
		if shared[name] {
			return usagef("--pod %s is several pods: say which with --uid, or with --node where that tells them apart: %s", name, strings.Join(podsOf(here, name), ", "))
		}
	}
	return nil
}

// absent says what was asked for by name and has nothing mounted, and which pods of
// the manifests are not mounted though others of their names are: they were mounted
// for another node. It is asked after choose.
func (s *selection) absent(mounted []volumemanager.VolumeStatus) (texts []string) {
	chosen := slices.DeleteFunc(slices.Clone(mounted), s.leaves)
	for _, name := range sortedNames(s.names) {
		if s.pods == nil && len(podsOf(chosen, name)) == 0 {
			texts = append(texts, s.nothingOf(name, mounted))
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(s.uids)) {
		if !s.chosen[uid] {
			texts = append(texts, fmt.Sprintf("no pod with UID %s%s has anything mounted", uid, s.ofNode()))
		}
	}
	for _, pod := range sortedPods(s.pods) {
		name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		if !s.chosen[pod.UID] && (s.names[name] || len(podsOf(mounted, name)) > 0) {
			texts = append(texts, s.nothingOf(name, mounted))
		}
	}
	if s.all && len(chosen) == 0 && len(mounted) > 0 {
		texts = append(texts, fmt.Sprintf("no pod%s has anything mounted", s.ofNode()))
	}
	return texts
}

// nothingOf says that a pod has nothing mounted, and which of its name have.
func (s *selection) nothingOf(name types.NamespacedName, mounted []volumemanager.VolumeStatus) string {
	text := fmt.Sprintf("pod %s%s has nothing mounted", name, s.ofNode())
	if others := podsOf(mounted, name); len(others) > 0 {
		text += fmt.Sprintf(", but another pod of that name has, with UID %s: say --node as mount did, or --uid", strings.Join(others, ", "))
	}
	return text
}

func (s *selection) ofNode() string {
	if s.nodeName == "" {
		return ""
	}
	return " of node " + s.nodeName
}

// tellMounted prints the pods that are still mounted, for a user whose pod was not found.
func tellMounted(w io.Writer, rootDir string, left []volumemanager.VolumeStatus) {
	var pods []string
	for _, v := range left {
		if name := rows.Of(v).Pod; !slices.Contains(pods, name) {
			pods = append(pods, name)
		}
	}
	if len(pods) == 0 {
		return
	}
	slices.Sort(pods)
	plaintext.Line(w, "Mounted below %s are volumes of %s; %s status shows them.", rootDir, choice.Few(pods), shellJoin(programName(os.Args[0])))
}

// sharedNames are the names that several pods have.
func sharedNames(volumes []volumemanager.VolumeStatus) map[types.NamespacedName]bool {
	first, shared := make(map[types.NamespacedName]types.UID), make(map[types.NamespacedName]bool)
	for _, v := range volumes {
		if uid, known := first[v.Pod]; known && uid != v.PodUID && v.Pod.Name != "" {
			shared[v.Pod] = true
		}
		first[v.Pod] = v.PodUID
	}
	return shared
}

// podsOf are the pods of a name: their UIDs, and their nodes as far as these are known.
func podsOf(volumes []volumemanager.VolumeStatus, name types.NamespacedName) (pods []string) {
	nodes := make(map[types.UID]types.NodeName)
	for _, v := range volumes {
		if v.Pod == name {
			nodes[v.PodUID] = cmp.Or(nodes[v.PodUID], v.NodeName)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(nodes)) {
		pods = append(pods, rows.PodText(string(uid), string(nodes[uid])))
	}
	return pods
}

func sortedNames(names map[types.NamespacedName]bool) []types.NamespacedName {
	return slices.SortedFunc(maps.Keys(names), func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
}

func sortedPods(pods map[types.UID]*v1.Pod) []*v1.Pod {
	return slices.SortedFunc(maps.Values(pods), func(a, b *v1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
}
