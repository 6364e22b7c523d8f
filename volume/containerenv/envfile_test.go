package containerenv

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestParseEnvFile(t *testing.T) {
	for name, tc := range map[string]struct {
		text, want string
		missing    bool
		line       int // of the fault
	}{
		"plain":                         {text: "KEY='value'\n", want: "value"},
		"no end of line":                {text: "KEY='value'", want: "value"},
		"empty":                         {text: "KEY=''\n"},
		"nothing":                       {text: "", missing: true},
		"another key":                   {text: "OTHER='x'\nKEYS='y'\n", missing: true},
		"case counts":                   {text: "key='x'\n", missing: true},
		"after others":                  {text: "A='1'\n\n# KEY='no'\n \t\nKEY='yes'\n", want: "yes"},
		"the first counts":              {text: "KEY='1'\nKEY='2'\n", want: "1"},
		"what follows is not looked at": {text: "KEY='1'\nnonsense\n", want: "1"},
		"blanks before":                 {text: " \tKEY='x'\n", want: "x"},
		"a comment after":               {text: "KEY='x' # said\n", want: "x"},
		"a comment at once":             {text: "KEY='x'# said\n", want: "x"},
		"blanks after":                  {text: "KEY='x' \t\n", want: "x"},
		"carriage returns":              {text: "KEY='x\r\ny'\r\n", want: "x\ny"},
		"several lines":                 {text: "KEY='one\n two \n\n#three=' # end\n", want: "one\n two \n\n#three="},
		"no escapes":                    {text: `KEY='a\n$B "c" \'` + "\n", want: `a\n$B "c" \`},
		"a blank after the sign":        {text: "KEY= 'x'\n"},
		"another's blank":               {text: "A= 'x'\nKEY='y'\n", want: "y"},
		"equals signs in the value":     {text: "KEY='a=b='\n", want: "a=b="},
		"no sign":                       {text: "A='1'\nKEY\n", line: 2},
		"no quotes":                     {text: "KEY=value\n", line: 1},
		"double quotes":                 {text: "KEY=\"value\"\n", line: 1},
		"no value":                      {text: "KEY=\n", line: 1},
		"no key":                        {text: "='x'\n", line: 1},
		"a blank before the sign":       {text: "KEY ='x'\n", line: 1},
		"text after":                    {text: "KEY='x'y\n", line: 1},
		"a second quote":                {text: "KEY='x' 'y'\n", line: 1},
		"text after many lines":         {text: "KEY='x\ny'z\n", line: 2},
		"never closed":                  {text: "A='1'\nKEY='x\ny\n", line: 2},
		"a fault of another":            {text: "A=1\nKEY='x'\n", line: 1},
	} {
		t.Run(name, func(t *testing.T) {
			for _, from := range []io.Reader{strings.NewReader(tc.text), iotest.OneByteReader(strings.NewReader(tc.text))} {
				got, found, err := parseEnvFile(from, "KEY")
				switch {
				case tc.line > 0 && (!errors.Is(err, ErrEnvFileFormat) || !strings.HasPrefix(err.Error(), fmt.Sprintf("line %d ", tc.line)) || found || strings.Contains(err.Error(), "x")):
					t.Errorf("%v, want a fault of line %d", err, tc.line)
				case tc.line == 0 && (err != nil || found == tc.missing || got != tc.want):
					t.Errorf("%q, %t, %v; want %q", got, found, err, tc.want)
				}
			}
		})
	}
}

func TestAnEnvFileHasALimit(t *testing.T) {
	most := "KEY='" + strings.Repeat("v", maxEnvFile-len("KEY=''")) + "'"
	if got, found, err := parseEnvFile(strings.NewReader(most), "KEY"); err != nil || !found || len(got) != maxEnvFile-6 {
		t.Errorf("%d bytes, %t, %v", len(got), found, err)
	}
	for name, text := range map[string]string{"one value": most + " ", "many": strings.Repeat("A='1'\n", maxEnvFile), "one comment": "#" + strings.Repeat("c", maxEnvFile)} {
		if _, _, err := parseEnvFile(strings.NewReader(text), "B"); !errors.Is(err, errEnvFileTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	failed := errors.New("read error")
	if _, _, err := parseEnvFile(io.MultiReader(strings.NewReader("KEY='x\n"), iotest.ErrReader(failed)), "KEY"); !errors.Is(err, failed) {
		t.Errorf("%v", err)
	}
}

// What is found is in the text, between quotes; what can be written is read as it was.
func FuzzParseEnvFile(f *testing.F) {
	for _, text := range []string{"KEY='value'\n", "A='1\n2' # c\n KEY= 'x'", "KEY='\r\n'", "#\n=\n", "KEY='\x00'", "KEY", "'", strings.Repeat("\n", 100)} {
		f.Add(text, "value\nof 2 lines")
	}
	f.Fuzz(func(t *testing.T, text, value string) {
		got, found, err := parseEnvFile(strings.NewReader(text), "KEY")
		switch {
		case err != nil && (found || got != ""):
			t.Errorf("%q beside %v", got, err)
		case !found && got != "", strings.Contains(got, "'"):
			t.Errorf("%q, found %t", got, found)
		case found && !strings.Contains(strings.ReplaceAll(text, "\r\n", "\n"), got):
			t.Errorf("%q is not in the file", got)
		}
		if strings.ContainsAny(value, "'\r") || len(value) > maxEnvFile/2 {
			return
		}
		if got, found, err := parseEnvFile(strings.NewReader("A='"+value+"'\nKEY='"+value+"'"), "KEY"); err != nil || !found || got != value {
			t.Errorf("%q is read as %q, %t, %v", value, got, found, err)
		}
	})
}
