package manifestdir

import (
	"os"
	"testing"
)

const configMap = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: shop}\ndata: {k: v}\n"

// podNamed is a manifest of a pod with these volumes, in flow style.
func podNamed(name, volumes string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", namespace: shop}\nspec:\n  volumes: [" + volumes + "]\n"
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func renamed(t *testing.T, from, to string) {
	t.Helper()
	must(t, os.Rename(from, to))
}

func putFile(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
}
