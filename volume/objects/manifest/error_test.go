package manifest

import (
	"strings"
	"testing"
)

// A name of any length is shown with its ends, in a message of a bounded length.
func TestAMessageShowsLongNamesInPart(t *testing.T) {
	name := strings.Repeat("n", 5000)
	for what, text := range map[string]string{
		"a name":  "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", namespace: shop}\nspec:\n  volumes: [{name: v, emptyDir: {}}]\n",
		"a field": "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop}\nspec:\n  volumes: [{name: v, " + name[:1000] + ": {}}]\n",
	} {
		_, err := Loader{NodeName: "here"}.Decode("long.yaml", []byte(text))
		if err == nil || len(err.Error()) > 3*maxWord || !strings.Contains(err.Error(), strings.Repeat("n", maxWord-50)) || !strings.HasPrefix(err.Error(), "long.yaml: document 1 (line 1): Pod shop/") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got, want := brief("pod \""+name+"\" is wrong"), "pod \""+name[:maxWord-1]+"…n\" is wrong"; got != want {
		t.Errorf("%q", got)
	}
}
