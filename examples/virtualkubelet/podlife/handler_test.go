package podlife

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// A text is cut between two characters, and is UTF-8 whatever was printed.
func TestShortened(t *testing.T) {
	for _, text := range []string{strings.Repeat("x", 1023) + "é!", strings.Repeat("x", 1022) + "日本", strings.Repeat("x", 1021) + "😀😀"} {
		got := shortened(text)
		if !strings.HasPrefix(text, got) || !utf8.ValidString(got) || len(got) < 1020 {
			t.Errorf("%d bytes of %q", len(got), text[1018:])
		}
	}
	if got := shortened(" a\xffb\n"); got != "a\uFFFDb" {
		t.Errorf("got %q", got)
	}
}
