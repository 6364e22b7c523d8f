package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Whoever asks to unmount what is not there is told what is, and so is a program by
// the exit code where a pod was named; what is there of the others goes.
func TestUnmountOfWhatIsNotThere(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		file, other := manifestFile(t, podNamed("a", disk)), manifestFile(t, podNamed("b", disk))
		missing := filepath.Join(root, "missing")
		mustPodvol(t, exitFailed, "unmount", "--pod", "shop/a", "--root-dir", missing)
		mustPodvol(t, exitOK, "unmount", "-f", file, "--root-dir", missing)
		for _, node := range []string{"laptop", "desk"} {
			mustPodvol(t, exitOK, "mount", "-f", file, "--node", node, "--root-dir", root)
		}
		out, _ := mustPodvol(t, exitOK, "status", "--root-dir", root, "-o", "json")
		status := rowsOf(t, out)
		if len(status) != 2 || status[0].PodUID == "" || status[0].PodUID == status[1].PodUID {
			t.Fatalf("rows %+v", status)
		}
		if table, _ := mustPodvol(t, exitOK, "status", "--root-dir", root); !strings.Contains(table, "shop/a ("+status[0].PodUID+" of node "+status[0].Node+")") {
			t.Errorf("status:\n%s", table)
		}
		for name, tc := range map[string]struct {
			code int
			args []string
			says string
		}{
			"misspelt":              {exitFailed, []string{"--pod", "shop/aa"}, "pod shop/aa has nothing mounted"},
			"not there":             {exitFailed, []string{"-f", other, "--pod", "shop/b"}, "pod shop/b of node"},
			"not in the manifests":  {exitUsage, []string{"-f", other, "--pod", "shop/a"}, "have no pod shop/a"},
			"in no manifest by now": {exitOK, []string{"-f", other}, "Nothing to unmount"},
			"without its node":      {exitFailed, []string{"-f", file}, "say --node as mount did"},
			"of another node":       {exitFailed, []string{"-f", file, "--node", "phone"}, "of node phone has nothing mounted"},
			"of several nodes":      {exitUsage, []string{"--pod", "shop/a"}, "say which with --uid, or with --node where that tells them apart: "},
			"named, of another":     {exitFailed, []string{"--pod", "shop/a", "--node", "phone"}, "pod shop/a of node phone has nothing mounted, but another pod of that name has, with UID " + status[0].PodUID + " of node "},
			"a UID of another node": {exitFailed, []string{"--uid", status[0].PodUID, "--node", status[1].Node}, "of node " + status[1].Node + " has anything mounted"},
			"all of another node":   {exitFailed, []string{"--all", "--node", "phone"}, "no pod of node phone has anything mounted"},
			"of no UID":             {exitFailed, []string{"--uid", "x"}, "no pod with UID x"},
			"a UID and a file":      {exitUsage, []string{"--uid", "x", "-f", file}, "--uid goes without"},
		} {
			t.Run(name, func(t *testing.T) {
				_, errOut := mustPodvol(t, tc.code, append([]string{"unmount", "--root-dir", root}, tc.args...)...)
				if !strings.Contains(errOut, tc.says) {
					t.Errorf("stderr lacks %q:\n%s", tc.says, errOut)
				}
				if tc.code != exitUsage && !strings.Contains(errOut, "Mounted below "+root+" are volumes of shop/a;") {
					t.Errorf("stderr does not say what is mounted:\n%s", errOut)
				}
			})
		}
		mustPodvol(t, exitOK, "mount", "-f", other, "--node", "laptop", "--root-dir", root)
		mustPodvol(t, exitFailed, "unmount", "--pod", "shop/b", "--pod", "shop/typo", "--root-dir", root)
		mustPodvol(t, exitOK, "unmount", "--uid", status[0].PodUID, "--root-dir", root)
		out, _ = mustPodvol(t, exitOK, "status", "--root-dir", root, "-o", "json")
		if left := rowsOf(t, out); len(left) != 1 || left[0].PodUID != "" {
			t.Errorf("left: %+v", left)
		}
		mustPodvol(t, exitOK, "unmount", "--pod", "shop/a", "--root-dir", root) // of one only by now
		out, _ = mustPodvol(t, exitOK, "mount", "-f", manifestFile(t, podNamed("ram", "{name: r, emptyDir: {medium: Memory}}")), "--root-dir", root, "-o", "json")
		unmountByHand(t, rowsOf(t, out)[0].Path)
		mustPodvol(t, exitFailed, "status", "--root-dir", root)
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
	})
}

// Of pods of one name on several nodes only that of the node that was asked for goes.
func TestUnmountOfOneNode(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		file := manifestFile(t, podNamed("a", disk))
		nodes := []string{"laptop", "desk", "phone"}
		for _, node := range nodes {
			mustPodvol(t, exitOK, "mount", "-f", file, "--node", node, "--root-dir", root)
		}
		mustPodvol(t, exitOK, "unmount", "--pod", "shop/a", "--node", "desk", "--root-dir", root)
		out, _ := mustPodvol(t, exitOK, "status", "--root-dir", root, "-o", "json")
		left := rowsOf(t, out)
		if len(left) != 2 || left[0].Node == "desk" || left[1].Node == "desk" || left[0].Node == left[1].Node {
			t.Errorf("left: %+v", left)
		}
		mustPodvol(t, exitFailed, "unmount", "--pod", "shop/a", "--node", "desk", "--root-dir", root)
		mustPodvol(t, exitOK, "unmount", "--all", "--node", "phone", "--root-dir", root)
		mustPodvol(t, exitFailed, "unmount", "--pod", "shop/a", "--node", "phone", "--root-dir", root)
		mustPodvol(t, exitOK, "unmount", "--pod", "shop/a", "--node", "laptop", "--root-dir", root)
		if out, _ := mustPodvol(t, exitOK, "status", "--root-dir", root, "-o", "json"); len(rowsOf(t, out)) != 0 {
			t.Errorf("left: %s", out)
		}
	})
}

// What a record does not say of its node is not guessed where pods are known by names
// alone, and a pod goes as a whole.
func TestSelectionByNode(t *testing.T) {
	name := types.NamespacedName{Namespace: "shop", Name: "a"}
	row := func(uid, node string) volumemanager.VolumeStatus {
		return volumemanager.VolumeStatus{Pod: name, PodUID: types.UID(uid), NodeName: types.NodeName(node)}
	}
	mounted := []volumemanager.VolumeStatus{row("old", ""), row("desk", "desk"), row("both", ""), row("both", "laptop")}
	byName := selection{names: map[types.NamespacedName]bool{name: true}}
	byUID := selection{uids: map[types.UID]bool{"old": true}}
	manifests := selection{pods: map[types.UID]*v1.Pod{"old": {}, "desk": {}}}
	for _, tc := range []struct {
		selection
		node, chosen string
	}{
		{selection{all: true}, "", "[old desk both both]"},
		{selection{all: true}, "desk", "[desk]"},
		{byName, "laptop", "[both both]"},
		{byName, "phone", "[]"},
		{byUID, "", "[old]"},
		{byUID, "desk", "[]"},
		{manifests, "", "[old desk]"},
		{manifests, "desk", "[old desk]"},
		{manifests, "laptop", "[old]"},
	} {
		s := tc.selection
		s.only = types.NodeName(tc.node)
		uids := []types.UID{}
		for _, v := range s.choose(mounted) {
			uids = append(uids, v.PodUID)
		}
		if got := fmt.Sprint(uids); got != tc.chosen {
			t.Errorf("%+v of node %q: %s, want %s", tc.selection, tc.node, got, tc.chosen)
		}
		for _, v := range mounted { // the claims of pods that stay, stay
			if tc.node != "" && s.pods == nil && s.owns(v.Pod, v.PodUID) && s.leaves(v) {
				t.Errorf("%+v of node %q: claims of %s would go", tc.selection, tc.node, v.PodUID)
			}
		}
	}
}
