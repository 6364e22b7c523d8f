package manifestdir

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestRefused(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	putFile(t, good, podNamed("a", "{name: v, emptyDir: {}}"))
	putFile(t, bad, podNamed("b", "{name: v, emptydir: {}}"))
	d := New(Config{Dir: dir, KnownFile: filepath.Join(t.TempDir(), "known")})
	d.Scan()
	refused := d.Refused()
	if len(refused) != 1 || refused[0].Path != bad || !strings.Contains(refused[0].Reason, "Pod shop/b") || refused[0].Since.IsZero() {
		t.Fatalf("refused: %+v", refused)
	}
	since := refused[0].Since
	putFile(t, bad, "{")
	putFile(t, good, "{")
	d.Scan()
	if refused = d.Refused(); len(refused) != 2 || refused[1].Since != since || !strings.Contains(refused[0].Reason, "the last good version of a.yaml stays in force") {
		t.Errorf("refused: %+v", refused)
	}
	putFile(t, good, podNamed("a", "{name: v, emptyDir: {}}"))
	putFile(t, bad, podNamed("b", "{name: v, emptyDir: {}}"))
	d.Scan()
	if refused = d.Refused(); len(refused) != 0 {
		t.Errorf("refused: %+v", refused)
	}
	moved := dir + ".moved"
	renamed(t, dir, moved)
	d.Scan()
	if refused = d.Refused(); len(refused) != 1 || refused[0].Path != dir || refused[0].Since.IsZero() {
		t.Errorf("refused: %+v", refused)
	}
	renamed(t, moved, dir)
	d.Scan()
	if refused = d.Refused(); len(refused) != 0 {
		t.Errorf("refused: %+v", refused)
	}
}
