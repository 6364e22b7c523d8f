package sentences_test

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/podvol/podvol/examples/podvol/internal/sentences"
)

func TestRecordsBecomeSentences(t *testing.T) {
	for name, tc := range map[string]struct {
		log  func(*slog.Logger)
		want string
	}{
		"a pod and its volume": {
			func(l *slog.Logger) {
				l.Warn("the disk is slow", "pod", "shop/web", "volume", "data", "reason", "Slow")
			},
			"podvol: shop/web data: the disk is slow\n",
		},
		"an error of two lines, and advice": {
			func(l *slog.Logger) {
				l.Error("it cannot be read", "podUID", "u1", "error", errors.New("one\ntwo"), "advice", "look at it")
			},
			"podvol: pod u1: it cannot be read: one\n    two; look at it\n",
		},
		"a claim": {func(l *slog.Logger) { l.Warn("it waits", "claim", "shop/data") }, "podvol: claim shop/data: it waits\n"},
		"all else": {
			func(l *slog.Logger) {
				l.With("dir", "/a\x1b[1m").WithGroup("of").Warn("another has it", slog.Int("pid", 7), "when", slog.StringValue("now"))
			},
			"podvol: another has it (dir /a\\u001b[1m, of.pid 7, of.when now)\n",
		},
		"what is of no interest": {func(l *slog.Logger) { l.Info("done") }, ""},
		"the same once more, and another": {
			func(l *slog.Logger) { l.Warn("a"); l.With().Warn("a"); l.Warn("b"); l.Warn("a") },
			"podvol: a\npodvol: b\npodvol: a\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			tc.log(slog.New(sentences.New(&out, slog.LevelWarn)))
			if out.String() != tc.want {
				t.Errorf("%q, want %q", &out, tc.want)
			}
		})
	}
}

// The attributes of one logger are not those of another one.
func TestLoggersShareNothing(t *testing.T) {
	var out bytes.Buffer
	l := slog.New(sentences.New(&out, slog.LevelWarn)).With("a", 1, "b", 2, "c", 3)
	first, second := l.With("d", "first"), l.With("d", "second")
	first.Warn("x")
	second.Warn("x")
	if want := "podvol: x (a 1, b 2, c 3, d first)\npodvol: x (a 1, b 2, c 3, d second)\n"; out.String() != want {
		t.Errorf("%q, want %q", &out, want)
	}
}
