package sharedirs

import (
	"errors"
	"path"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/subpath"
)

func values(namespace, claim, volume string) map[string]string {
	return map[string]string{
		ClaimNamespace: namespace, ClaimName: claim, VolumeName: volume,
	}
}

func TestExpand(t *testing.T) {
	for template, want := range map[string]string{
		"${pv.metadata.name}":                                  "pvc-1",
		"${pvc.metadata.namespace}/${pvc.metadata.name}":       "ops/data",
		"k8s/${pvc.metadata.namespace}-${pvc.metadata.name}.d": "k8s/ops-data.d",
		"$a$/{x}": "$a$/{x}",
		"fixed":   "fixed",
		"ünï/...": "ünï/...",
	} {
		got, err := Expand(template, values("ops", "data", "pvc-1"))
		if err != nil || got != want {
			t.Errorf("Expand(%q) = %q, %v, want %q", template, got, err, want)
		}
	}
}

func TestExpandRefuses(t *testing.T) {
	for template, because := range map[string]string{
		"":                         "empty",
		"/${pv.metadata.name}":     "relative",
		"${pv.metadata.name}/":     "empty element",
		"a//b":                     "empty element",
		"a/./b":                    `"."`,
		"../${pv.metadata.name}":   `".."`,
		"a/../../etc":              `".."`,
		"${pv.metadata.name":       `no "}"`,
		"${}":                      "no variable",
		"${pv.metadata.uid}":       "${pv.metadata.name}",
		"${PV.metadata.name}":      "no variable",
		"a\x00b":                   "control",
		"a\nb":                     "control",
		`..\..\etc`:                "backslash",
		"a\xff":                    "UTF-8",
		strings.Repeat("x", 256):   "255",
		strings.Repeat("x/", 2000): "2048",
	} {
		got, err := Expand(template, values("ops", "data", "pvc-1"))
		if e, ok := errors.AsType[*pathError](err); !ok || !strings.Contains(e.reason, because) || got != "" {
			t.Errorf("Expand(%q) = %q, %v, want an error with %q", template, got, err, because)
		}
	}
}

// CVE-2026-3864: ".." in what becomes the path led the deletion of a volume out
// of the share. Whatever a claim is called, its name stays within its element.
func TestCVE20263864(t *testing.T) {
	hostile := []string{"..", ".", "", "../..", "../../etc", "/etc", "a/b", "a/../b", "..\x00", "..\\..", "a\n", "\x7f", strings.Repeat("n", 300), "\xff"}
	templates := []string{"${pvc.metadata.name}", "${pvc.metadata.namespace}/${pvc.metadata.name}", "base/${pvc.metadata.name}/x", "x-${pvc.metadata.name}-y"}
	for _, template := range templates {
		for _, name := range hostile {
			for _, v := range []map[string]string{values("ops", name, "pv"), values(name, name, name)} {
				if got, err := Expand(template, v); err == nil {
					t.Errorf("Expand(%q) with the name %q = %q", template, name, got)
				}
			}
		}
	}
	// Parts that are harmless alone make no element that is not.
	if got, err := Expand("${pvc.metadata.namespace}${pvc.metadata.name}", values("x.", ".", "pv")); err == nil {
		t.Errorf("made %q", got)
	}
	if got, err := Expand(".${pvc.metadata.name}", values("ops", ".", "pv")); err == nil {
		t.Errorf("made %q", got)
	}
	// The template's own dot makes no ".." of a name that is none.
	if got, err := Expand("..${pvc.metadata.name}", values("ops", "x", "pv")); err != nil || got != "..x" {
		t.Errorf("%q, %v", got, err)
	}
}

func FuzzExpand(f *testing.F) {
	f.Add("${pvc.metadata.namespace}/${pvc.metadata.name}", "ops", "data", "pv")
	f.Add("a/${pv.metadata.name}/..", "..", "../x", "/")
	f.Add(".${pvc.metadata.name}", ".", ".", "\x00")
	f.Fuzz(func(t *testing.T, template, namespace, claim, volume string) {
		got, err := Expand(template, values(namespace, claim, volume))
		if err != nil {
			if got != "" || !errors.As(err, new(*pathError)) {
				t.Fatalf("%q, %v", got, err)
			}
			return
		}
		if path.Clean(got) != got || path.IsAbs(got) || got == "." || strings.HasPrefix(got+"/", "../") || subpath.Check(got) != nil {
			t.Fatalf("%q is not a clean path below a directory", got)
		}
		for element := range strings.SplitSeq(got, "/") {
			if len(element) > 255 {
				t.Fatalf("%q has a long element", got)
			}
		}
		// Only the template's slashes make elements.
		if strings.Count(got, "/") != strings.Count(withoutVariables(template), "/") {
			t.Fatalf("%q of %q has more elements than its template", got, template)
		}
	})
}

func withoutVariables(template string) string {
	for _, name := range []string{ClaimName, ClaimNamespace, VolumeName} {
		template = strings.ReplaceAll(template, "${"+name+"}", "")
	}
	return template
}
