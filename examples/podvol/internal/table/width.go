package table

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"

	"golang.org/x/term"
	"golang.org/x/text/width"

	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
)

// The size of a terminal that does not tell its own, as over some serial lines.
const usualColumns, usualLines = 80, 24

// TerminalSize is how many columns and lines the terminal has that w is; 0, 0: it is none.
func TerminalSize(w io.Writer) (columns, lines int) {
	file, ok := plaintext.AsGiven(w).(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return 0, 0
	}
	columns, lines, err := term.GetSize(int(file.Fd()))
	if err != nil || columns <= 0 {
		return usualColumns, usualLines
	}
	return columns, lines
}

// TerminalWidth is how many columns the terminal has that w is; 0: it is none.
func TerminalWidth(w io.Writer) int {
	columns, _ := TerminalSize(w)
	return columns
}

// Width is how many columns of a terminal a text takes: wide characters of East Asia two,
// combining ones none.
func Width(text string) int {
	sum := 0
	for _, r := range text {
		sum += runeWidth(r)
	}
	return sum
}

func runeWidth(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// Shorten shortens a text to so many columns. What is left out is in the middle: names
// of replicas differ at the end, and those of namespaces and servers at the beginning.
func Shorten(text string, columns int) string {
	if Width(text) <= columns {
		return text
	}
	runes := []rune(text)
	from, until, room := 0, len(runes), columns-1
	for left := (room + 1) / 2; from < until && left >= runeWidth(runes[from]); from++ {
		left -= runeWidth(runes[from])
		room -= runeWidth(runes[from])
	}
	for from < until && room >= runeWidth(runes[until-1]) {
		until--
		room -= runeWidth(runes[until])
	}
	for until < len(runes) && runeWidth(runes[until]) == 0 {
		until++ // it would combine with the dots
	}
	return string(runes[:from]) + "…" + string(runes[until:])
}

// Cut shortens a text to so many columns. What is left out is at the end, as of a sentence.
func Cut(text string, columns int) string {
	if Width(text) <= columns {
		return text
	}
	left := columns - 1
	for at, r := range text {
		if left -= runeWidth(r); left < 0 {
			return text[:at] + "…"
		}
	}
	return text
}

// Paragraph writes a text whose first line is indented as told, and the others by four spaces, so
// that none looks like one of another text. At a terminal no line is wider than that.
func Paragraph(w io.Writer, indent, text string) error {
	_, err := fmt.Fprintf(w, "%s%s\n", indent, strings.Join(Wrap(text, TerminalWidth(w)-4), "\n    "))
	return err
}

// Sentence writes what is one paragraph, whatever the names in it are. Nothing depends on it.
func Sentence(w io.Writer, format string, args ...any) {
	_ = Paragraph(w, "", plaintext.Cell(fmt.Sprintf(format, args...)))
}

// least is the width below which lines are not broken: a terminal breaks them better.
const least = 20

// Wrap breaks the lines of a text at spaces, to be so many columns wide at most.
func Wrap(text string, columns int) (broken []string) {
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		line = plaintext.Cell(strings.TrimRight(line, " \t\r"))
		if columns < least {
			broken = append(broken, line)
			continue
		}
		at := ""
		for i, word := range strings.Split(line, " ") {
			switch {
			case i == 0:
				at = word
			case Width(at)+1+Width(word) <= columns:
				at += " " + word
			default:
				broken, at = append(broken, at), word
			}
		}
		broken = append(broken, at)
	}
	return broken
}
