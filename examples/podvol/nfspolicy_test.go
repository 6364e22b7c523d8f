package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/podvol/podvol/examples/podvol/internal/ownplugins"
	"github.com/podvol/podvol/util/testenv/nstest"
)

const (
	nfsInline = "../../testdata/nfs-inline.yaml"
	nfsPolicy = "../../testdata/nfs/policy.yaml"
)

func TestNFSPolicyLetsPodsAskForOptions(t *testing.T) {
	_, errOut := mustPodvol(t, exitOK, "mount", "--fake", "-f", nfsInline, "--nfs-policy", nfsPolicy)
	if want := "mount -t nfs -o nosuid,nodev,vers=4.1,nconnect=4 10.20.172.211:/export/pods/inline "; !strings.Contains(errOut, want) {
		t.Errorf("stderr lacks %q:\n%s", want, errOut)
	}
	_, errOut = mustPodvol(t, exitFailed, "mount", "--fake", "-f", nfsInline)
	for _, want := range []string{"default/inline data: ", `"nconnect=4"`, `{server: "10.20.172.211", makeBelow: ["/export/pods"]}`} {
		if !strings.Contains(errOut, want) {
			t.Errorf("without a policy, stderr lacks %q:\n%s", want, errOut)
		}
	}
}

// Also where run starts itself again for an ordinary user, the policy counts:
// what it does not allow is refused by its entry, before any server is asked.
func TestRunUnderNFSPolicy(t *testing.T) {
	policy := manifestFile(t, "servers:\n- server: \"*\"\n  allow: [timeo]\n")
	refused := func(t *testing.T, errOut string) {
		for _, want := range []string{`"nconnect=4"`, `this node's NFS policy for "*", which holds for server "10.20.172.211"`} {
			if !strings.Contains(errOut, want) {
				t.Errorf("stderr lacks %q:\n%s", want, errOut)
			}
		}
	}
	nstest.Run(t, func(t *testing.T) {
		base := t.TempDir()
		_, errOut := mustPodvol(t, exitRunFailed, "run", "-f", nfsInline, "--root-dir", base, "--timeout", "5s", "--nfs-policy", policy, "--", "true")
		refused(t, errOut)
		assertNoRuns(t, base)
	})
	again := runOptions{files: []string{nfsInline}, plugins: ownplugins.Options{NFSPolicy: policy}, command: []string{"true"}}.args()
	if i := slices.Index(again, "--nfs-policy"); i < 0 || again[i+1] != policy || i > slices.Index(again, "--") {
		t.Errorf("it starts itself again with %q", again)
	}
}

func TestBadNFSPolicyIsAUsageError(t *testing.T) {
	for name, tc := range map[string]struct{ file, because string }{
		"missing": {"/nonexistent/policy.yaml", "no such file"},
		"field":   {manifestFile(t, "servers:\n- server: \"*\"\n  alow: [hard]\n"), "line 3: field alow not found"},
		"value":   {manifestFile(t, "servers:\n- server: \"*\"\n  allow: [bind]\n"), "servers[0].allow[0]"},
		"empty":   {manifestFile(t, ""), "is empty"},
	} {
		for _, command := range [][]string{{"mount", "--fake", "-f", nfsInline}, {"run-node", "--fake", "-f", t.TempDir()}} {
			t.Run(name+" "+command[0], func(t *testing.T) {
				out, errOut := mustPodvol(t, exitUsage, append(command, "--nfs-policy", tc.file)...)
				if out != "" || !strings.Contains(errOut, "--nfs-policy") || !strings.Contains(errOut, tc.because) {
					t.Errorf("stdout: %s\nstderr: %s", out, errOut)
				}
			})
		}
		t.Run(name+" run", func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				base := t.TempDir()
				out, errOut := mustPodvol(t, exitRunFailed, "run", "-f", nfsInline, "--root-dir", base, "--nfs-policy", tc.file, "--", "true")
				if out != "" || !strings.Contains(errOut, "--nfs-policy") || !strings.Contains(errOut, tc.because) {
					t.Errorf("stdout: %s\nstderr: %s", out, errOut)
				}
				assertNoRuns(t, base)
			})
		})
	}
}
