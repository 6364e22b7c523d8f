package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pod is a manifest of a pod with these volumes, in flow style; without containers
// it uses them all.
func pod(volumes string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop}\nspec:\n  volumes: [" + volumes + "]\n"
}

const (
	configMap = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: shop}\ndata: {k: v}\n"
	claim     = "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: d, namespace: shop}\n" +
		"spec: {accessModes: [ReadWriteOnce], storageClassName: \"\", resources: {requests: {storage: 1Gi}}}\n"
	pvHead = "---\napiVersion: v1\nkind: PersistentVolume\nmetadata: {name: p}\nspec:\n  capacity: {storage: 1Gi}\n  accessModes: [ReadWriteOnce]\n"
)

// Every kind of bad input is refused with an error that names it, with the
// exit code that tells a wrong manifest from a failed volume, and nothing is
// mounted or made.
func TestBadInput(t *testing.T) {
	useClaim := "{name: v, persistentVolumeClaim: {claimName: d}}"
	tests := map[string]struct {
		manifest string
		code     int
		says     string
	}{
		"dot dot in an item":        {pod("{name: v, configMap: {name: c, items: [{key: k, path: ../x}]}}") + configMap, exitUsage, ".."},
		"absolute path in an item":  {pod("{name: v, configMap: {name: c, items: [{key: k, path: /x}]}}") + configMap, exitUsage, "/x"},
		"impossible mode":           {pod("{name: v, configMap: {name: c, defaultMode: 4096}}") + configMap, exitUsage, "defaultMode"},
		"negative mode":             {pod("{name: v, configMap: {name: c, items: [{key: k, path: p, mode: -1}]}}") + configMap, exitUsage, "mode"},
		"negative size":             {pod("{name: v, emptyDir: {sizeLimit: -1Gi}}"), exitUsage, "sizeLimit"},
		"slash in a volume's name":  {pod("{name: a/b, emptyDir: {}}"), exitUsage, "a/b"},
		"slash in a pod's UID":      {strings.Replace(pod("{name: v, emptyDir: {}}"), "name: web", "name: web, uid: ../../x", 1), exitUsage, "uid"},
		"duplicate volume":          {pod("{name: v, emptyDir: {}}, {name: v, emptyDir: {}}"), exitUsage, "v"},
		"two sources":               {pod("{name: v, emptyDir: {}, hostPath: {path: /etc}}"), exitUsage, "hostPath"},
		"no source":                 {pod("{name: v}"), exitUsage, "source"},
		"unknown field":             {pod("{name: v, emptyDir: {sizelimit: 1Gi}}"), exitUsage, "sizelimit"},
		"duplicate field":           {pod("{name: v, emptyDir: {medium: Memory, medium: Memory}}"), exitUsage, "medium"},
		"NFS without server":        {pod("{name: v, nfs: {path: /e}}"), exitUsage, "server"},
		"NFS with a relative path":  {pod("{name: v, nfs: {server: s, path: e}}"), exitUsage, "path"},
		"claim missing":             {pod(useClaim), exitFailed, "shop/d"},
		"claim bound elsewhere":     {pod(useClaim) + strings.Replace(claim, "spec: {", "spec: {volumeName: p, ", 1) + pvHead + "  nfs: {server: s, path: /e}\n  claimRef: {namespace: other, name: rival}\n", exitFailed, "rival"},
		"PV of another node":        {pod(useClaim) + claim + pvHead + "  local: {path: /tmp}\n  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [elsewhere]}]}]}}\n", exitFailed, "node"},
		"secret missing":            {pod("{name: v, secret: {secretName: gone}}"), exitFailed, "Secret shop/gone"},
		"key missing":               {pod("{name: v, configMap: {name: c, items: [{key: other, path: p}]}}") + configMap, exitFailed, "other"},
		"unsupported type":          {pod("{name: v, quobyte: {registry: 'r:1', volume: q}}"), exitFailed, "quobyte"},
		"pod certificate":           {pod("{name: v, projected: {sources: [{podCertificate: {signerName: example.com/b, keyType: ED25519, credentialBundlePath: p}}]}}"), exitFailed, "podCertificate"},
		"option that runs programs": {pod(useClaim) + claim + pvHead + "  nfs: {server: s, path: /e}\n  mountOptions: [\"helper=/tmp/x\"]\n", exitFailed, "helper"},
		"Gluster without Endpoints": {pod("{name: v, glusterfs: {endpoints: e, path: p}}"), exitFailed, "Endpoints shop/e"},
		"Gluster on this machine":   {pod("{name: v, glusterfs: {endpoints: e, path: p}}") + "---\napiVersion: v1\nkind: Endpoints\nmetadata: {name: e, namespace: shop}\nsubsets: [{addresses: [{ip: 127.0.0.1}], ports: [{port: 1}]}]\n", exitFailed, "loopback"},
		"source like an option":     {pod("{name: v, nfs: {server: -oremount, path: /e}}"), exitFailed, "-oremount"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			temp := t.TempDir()
			t.Setenv("TMPDIR", temp)
			root := filepath.Join(t.TempDir(), "root")
			code, out, errOut := podvol(t, tc.manifest, "mount", "--fake", "--node", "here", "-f", "-", "--root-dir", root)
			if code != tc.code || !strings.Contains(errOut, tc.says) {
				t.Errorf("exit code %d, want %d and %q\nstdout: %s\nstderr: %s", code, tc.code, tc.says, out, errOut)
			}
			if strings.Contains(out, "would mount") || strings.Contains(errOut, "\n  mount ") || strings.Contains(errOut, "\n  mkdir ") {
				t.Errorf("something was touched:\n%s\n%s", out, errOut)
			}
			if _, err := os.Stat(root); !os.IsNotExist(err) {
				t.Errorf("the root directory was touched: %v", err)
			}
		})
	}
}

// No name of a manifest or a flag begins a line of its own.
func TestNamesStayInTheirLines(t *testing.T) {
	container := `containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}]`
	for manifest, code := range map[string]int{
		`{apiVersion: v1, kind: Pod, metadata: {name: "new\nfaked", namespace: shop}, spec: {` + container + `, volumes: [{name: v, emptyDir: {}}]}}`:                                                 exitUsage,
		`{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: "s\tx\nfaked"}, spec: {` + container + `, volumes: [{name: v, emptyDir: {}}]}}`:                                                   exitUsage,
		`{apiVersion: v1, kind: Pod, metadata: {name: a, "x\nfaked": 1}}`:                                                                                                                             exitUsage,
		`{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: "a\nfaked"}, spec: {}}`:                                                                                                       exitUsage,
		`{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {` + container + `, volumes: [{name: v, persistentVolumeClaim: {claimName: "a\nfaked"}}]}}`:                                           exitUsage,
		`{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {` + container + `, volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}], serviceAccountName: "a\nfaked"}}`: exitFailed,
		`{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {` + container + `, volumes: [{name: v, hostPath: {path: "/none\nfaked", type: DirectoryOrCreate}}]}}`:                                exitOK,
	} {
		if _, errOut := mustPodvol(t, code, "mount", "--fake", "-f", manifestFile(t, manifest)); regexp.MustCompile(`\n *faked`).MatchString(errOut) || !strings.Contains(errOut, "faked") {
			t.Errorf("%s: %s", manifest, errOut)
		}
	}
	root := filepath.Join(t.TempDir(), "a\nfaked")
	for _, args := range [][]string{{"mount", "-f", "no\nfaked"}, {"mount", "--x\nfaked"}, {"explain", "a\nfaked", "--root-dir", root}, {"status", "--root-dir", root},
		{"fsck", "--root-dir", root}, {"unmount", "--all", "--root-dir", root}, {"unmount", "--pod", "a/b\nfaked", "--root-dir", t.TempDir()}, {"x\nfaked"}} {
		_, _, errOut := podvol(t, "", args...)
		refused := args[0] == "unmount" && os.Geteuid() != 0 // before the names are read
		if strings.Contains(errOut, "\nfaked") || !strings.Contains(errOut, "faked") && !refused {
			t.Errorf("%q: %s", args, errOut)
		}
	}
}
