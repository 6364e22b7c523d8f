package downward

import (
	"slices"
	"strings"
	"testing"
)

func TestExpand(t *testing.T) {
	values := map[string]string{"A": "1", "B": "two", "EMPTY": "", "REF": "$(A)", "with space": "s", "": "nameless"}
	tests := map[string]struct {
		text, want string
		missing    []string
	}{
		"nothing to do":              {text: "plain", want: "plain"},
		"empty":                      {text: "", want: ""},
		"one":                        {text: "$(A)", want: "1"},
		"in the middle":              {text: "x-$(A)-y", want: "x-1-y"},
		"one after another":          {text: "$(A)$(B)", want: "1two"},
		"an empty value":             {text: "[$(EMPTY)]", want: "[]"},
		"a value is not expanded":    {text: "$(REF)", want: "$(A)"},
		"escaped":                    {text: "$$(A)", want: "$(A)"},
		"escaped, then expanded":     {text: "$$$(A)", want: "$1"},
		"escaped twice":              {text: "$$$$(A)", want: "$$(A)"},
		"a dollar at the end":        {text: "cost: 5$", want: "cost: 5$"},
		"two dollars at the end":     {text: "5$$", want: "5$"},
		"a shell variable stays":     {text: "$A ${A}", want: "$A ${A}"},
		"a dollar before others":     {text: "$ä$(A)", want: "$ä1"},
		"never closed":               {text: "$(A", want: "$(A"},
		"never closed, then escaped": {text: "$(A$$", want: "$(A$"},
		"closed elsewhere":           {text: "$(A$(B)", want: "$(A$(B)", missing: []string{"A$(B"}},
		"the first parenthesis ends": {text: "$(A))", want: "1)"},
		"spaces belong to the name":  {text: "$(with space)$( A )", want: "s$( A )", missing: []string{" A "}},
		"without a name":             {text: "$()", want: "nameless"},
		"unknown":                    {text: "$(X)/$(A)/$(Y)", want: "$(X)/1/$(Y)", missing: []string{"X", "Y"}},
		"an unknown one escaped":     {text: "$$(X)", want: "$(X)"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, missing := Expand(test.text, Map(values))
			if got != test.want || !slices.Equal(missing, test.missing) {
				t.Errorf("Expand(%q) = %q, %q; want %q, %q", test.text, got, missing, test.want, test.missing)
			}
		})
	}
}

// Text whose dollars are all doubled comes back as it was.
func FuzzExpand(f *testing.F) {
	f.Add("$(A) $$ $(", "v")
	f.Fuzz(func(t *testing.T, text, value string) {
		always := func(string) (string, bool) { return value, true }
		if got, missing := Expand(strings.ReplaceAll(text, "$", "$$"), always); got != text || missing != nil {
			t.Errorf("%q escaped becomes %q, missing %q", text, got, missing)
		}
		if got, _ := Expand(text, always); !strings.Contains(text, "$") && got != text {
			t.Errorf("%q without a dollar becomes %q", text, got)
		}
	})
}
