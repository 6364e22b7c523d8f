// Package nearest finds the word that somebody meant who has mistyped it.
package nearest

// Word returns the word of a list that is most like the given one, or an empty string where
// none is like enough: it takes at most one change of a letter for every three, two letters
// in the wrong order being one. Of words that are equally like it the first one is returned.
func Word(given string, of []string) string {
	best, least := "", (len([]rune(given))+2)/3+1
	for _, word := range of {
		if d := distance([]rune(given), []rune(word)); d < least {
			best, least = word, d
		}
	}
	return best
}

// distance counts the letters to add, to remove, to replace or to swap with the next one.
func distance(a, b []rune) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range b {
		rows[0][j+1] = j + 1
	}
	for i := range a {
		for j := range b {
			changed := 1
			if a[i] == b[j] {
				changed = 0
			}
			d := min(rows[i][j+1]+1, rows[i+1][j]+1, rows[i][j]+changed)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				d = min(d, rows[i-1][j-1]+1)
			}
			rows[i+1][j+1] = d
		}
	}
	return rows[len(a)][len(b)]
}
