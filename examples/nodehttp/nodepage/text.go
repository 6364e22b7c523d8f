package nodepage

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// moment is a time for people, and how long ago it is. Machine is the same time in RFC 3339.
type moment struct{ Machine, Clock, Ago string }

func newMoment(t, now time.Time) moment {
	if t.IsZero() {
		return moment{}
	}
	t, now = t.UTC(), now.UTC()
	layout := "2006-01-02 15:04"
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		layout = time.TimeOnly
	}
	return moment{t.Format(time.RFC3339), t.Format(layout), span(now.Sub(t))}
}

// span is a length of time in its largest unit.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}

// plain is a [clean] text that is not endless.
func plain(text string) string {
	n := 0
	for at := range text {
		if n++; n > maxText {
			text = text[:at] + "…"
			break
		}
	}
	return clean(text)
}

// clean is a text without what changes a reader's eye: controls and directions of writing.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && (unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(text, string(unicode.ReplacementChar)))
}

func number(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
