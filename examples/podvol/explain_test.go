package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/podvol/podvol/util/testenv/nstest"
)

func TestExplain(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		n := runProcess(t, t.TempDir(), root)
		n.put("a.yaml", podNamed("a", "{name: memory, emptyDir: {medium: Memory}}, {name: login, secret: {secretName: login}}, {name: bad, configMap: {name: missing}}")+
			"---\napiVersion: v1\nkind: Secret\nmetadata: {name: login, namespace: shop}\nstringData: {password: s3cr3t}\n")
		n.reach(map[string]string{"bad": "failed", "login": "mounted", "memory": "mounted"})
		says := func(word string, texts ...string) {
			t.Helper()
			out, errOut := mustPodvol(t, exitOK, "explain", word, "--root-dir", root)
			for _, text := range texts {
				if !strings.Contains(out, text) {
					t.Errorf("%s: it does not say %q:\n%s%s", word, text, out, errOut)
				}
			}
			if strings.Contains(out+errOut, "s3cr3t") {
				t.Errorf("%s: it tells a secret:\n%s", word, out)
			}
		}
		says("a", "podvol run-node, which runs", "Volume bad:", "Volume login:", "Volume memory:", "secret login")
		says("shop/a/bad", "Waits for:     ConfigMap shop/missing to exist", "Cause:         NotFound", "failure", "Wanted:        yes", "Record:        none yet")
		says("a/memory", "tmpfs from tmpfs, rw", "set up at ", "Under way:  nothing")
		_, errOut := mustPodvol(t, exitFailed, "explain", "a/memry", "--root-dir", root)
		if !strings.Contains(errOut, `did you mean "a/memory"?`) {
			t.Errorf("%s", errOut)
		}
		n.put("b.yaml", strings.Replace(podNamed("a", disk), "shop", "lab", 1))
		n.row("disk", "mounted")
		_, errOut = mustPodvol(t, exitUsage, "explain", "a", "--root-dir", root)
		if !strings.Contains(errOut, "a is several pods") || !strings.Contains(errOut, "lab/a (UID ") || !strings.Contains(errOut, "shop/a (UID ") {
			t.Errorf("%s", errOut)
		}
		n.kill()
		says("shop/a/memory", "no podvol run-node was asked", "mounted since ", "tmpfs from tmpfs, rw")
		mustPodvol(t, exitUsage, "explain", "--root-dir", root)
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
	})
}

// reach waits until volumes have been in these states, in whichever order.
func (n *nodeTest) reach(states map[string]string) {
	n.t.Helper()
	late := time.After(patience)
	for len(states) > 0 {
		select {
		case r, ok := <-n.rows:
			if !ok {
				n.t.Fatalf("it ended before %v: %s", states, n.lastWords())
			}
			if states[r.Volume] == r.State {
				delete(states, r.Volume)
			}
		case <-late:
			n.t.Fatalf("in %v not reached: %v; it said %v", patience, states, n.heard())
		}
	}
}
