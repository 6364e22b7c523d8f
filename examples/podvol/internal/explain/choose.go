package explain

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/podvol/podvol/examples/podvol/internal/choice"
	"github.com/podvol/podvol/examples/podvol/internal/nodeserver"
	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
)

// ambiguousError: several pods are meant by a word.
type ambiguousError struct {
	Word string
	// Pods are their names, UIDs and nodes.
	Pods []string
}

func (e *ambiguousError) Error() string {
	return fmt.Sprintf("%s is several pods; say which by NAMESPACE/NAME or by UID:\n  %s", e.Word, strings.Join(e.Pods, "\n  "))
}

// choose returns the volumes that a word means: POD or POD/VOLUME, where POD is NAME,
// NAMESPACE/NAME or a UID. A word that can be read in several ways is read as the one that is.
// All are of one pod.
func choose(all []nodeserver.Volume, word string) ([]nodeserver.Volume, error) {
	pods := slices.DeleteFunc(slices.Clone(all), func(v nodeserver.Volume) bool { return !slices.Contains(podWords(v), word) })
	chosen := slices.DeleteFunc(slices.Clone(all), func(v nodeserver.Volume) bool { return !slices.Contains(volumeWords(v), word) })
	chosen = append(pods, chosen...)
	if len(chosen) == 0 {
		return nil, notFound(all, word)
	}
	var uids, names []string
	for _, v := range chosen {
		if !slices.Contains(uids, v.PodUID) {
			uids, names = append(uids, v.PodUID), append(names, nameOf(v))
		}
	}
	if len(uids) > 1 {
		return nil, &ambiguousError{word, names}
	}
	if len(pods) > 0 {
		return pods, nil // a pod's name outranks one of its volumes
	}
	return chosen, nil
}

// podWords are the words for a volume's pod.
func podWords(v nodeserver.Volume) []string {
	if v.Pod == "" {
		return []string{v.PodUID}
	}
	return []string{v.Pod, v.PodName(), v.PodUID}
}

// volumeWords are those for a volume.
func volumeWords(v nodeserver.Volume) []string {
	words := podWords(v)
	for i := range words {
		words[i] += "/" + v.Volume
	}
	return words
}

// nameOf names a volume's pod so that there is one of it.
func nameOf(v nodeserver.Volume) string {
	text := v.PodName() + " (UID " + v.PodUID
	if v.Node != "" {
		text += ", node " + v.Node
	}
	return text + ")"
}

// notFound says what there is instead.
func notFound(all []nodeserver.Volume, word string) error {
	var words, volumes []string
	pod := word[:max(0, strings.LastIndexByte(word, '/'))]
	for _, v := range all {
		words = append(words, podWords(v)...)
		words = append(words, volumeWords(v)...)
		if pod != "" && slices.Contains(podWords(v), pod) {
			volumes = append(volumes, v.Volume)
		}
	}
	text := fmt.Sprintf("no pod %s has volumes here; podvol status shows those that have", plaintext.Cell(word))
	if len(volumes) > 0 {
		slices.Sort(volumes)
		volumes = slices.Compact(volumes)
		text = fmt.Sprintf("no volume of that name: %s; pod %s has %s", plaintext.Cell(word), pod, strings.Join(volumes, ", "))
		words = nil // of those that are like it by the pod's name alone, none is meant
		for _, volume := range volumes {
			if choice.Meant(word[len(pod)+1:], []string{volume}) != "" {
				words = append(words, pod+"/"+volume)
			}
		}
	}
	return errors.New(text + choice.Meant(word, words))
}

// alsoUsing are the volumes of other pods, and of this one, that show the same data: by their
// claim, their PersistentVolume or their source.
func alsoUsing(all []nodeserver.Volume, v nodeserver.Volume) (users []string) {
	for _, o := range all {
		own := o.PodUID == v.PodUID && o.Volume == v.Volume
		if !own && sharesData(o, v) {
			users = append(users, o.PodName()+" (volume "+o.Volume+")")
		}
	}
	slices.Sort(users)
	return slices.Compact(users)
}

func sharesData(a, b nodeserver.Volume) bool {
	switch {
	case a.Claim != "" && a.Claim == b.Claim, a.PersistentVolume != "" && a.PersistentVolume == b.PersistentVolume:
		return true
	case a.Plugin != b.Plugin || a.Source == "" || a.Source != b.Source:
		return false
	}
	switch strings.TrimPrefix(a.Plugin, "kubernetes.io/") {
	case "empty-dir", "downward-api", "projected": // whose sources say how they are made
		return false
	case "csi": // the driver alone where each pod has a volume of its own
		return strings.Contains(a.Source, ":")
	case "flexvolume": // whose sources are their drivers
		return false
	case "configmap", "secret":
		return a.Namespace == b.Namespace
	}
	return true
}
