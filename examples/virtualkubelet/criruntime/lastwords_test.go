package criruntime

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// The last words are cut between two characters.
func TestLastWordsAreOfWholeCharacters(t *testing.T) {
	r := &Runtime{Config: Config{Dir: t.TempDir()}}
	c := &run{runtime: r, pod: "uid", spec: &v1.Container{Name: "main"}}
	if err := os.MkdirAll(filepath.Join(r.Dir, "uid", "main"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, rest := range []string{"é", "日", "😀"} {
		message := strings.Repeat("x", mostMessage-1)
		if err := os.WriteFile(r.messageFile("uid", "main", 0), []byte(message+rest), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := c.lastWords(nil); got != message {
			t.Errorf("of the file: %q", got[mostMessage-4:])
		}
		line := strings.Repeat("x", mostLog-1)
		if err := os.WriteFile(r.LogFile("uid", "main", 0), []byte("2026-01-01T00:00:00Z stdout P "+rest+line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := c.lastLines(); got != line {
			t.Errorf("of the log: %q", got[:4])
		}
	}
}
